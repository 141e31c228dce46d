"""Generators that the segment makes: frames that are run a step at a time.

Counterpart: torch/_dynamo/variables/functions.py LocalGeneratorObjectVariable
Differs: the machine resumes the generator's frame itself. What eats an iterable in C is Python that is interpreted where the
iterable is a generator (`polyfills`).
"""

from __future__ import annotations

import builtins
from collections import OrderedDict, deque
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import ConstantValue, DictValue, GeneratorValue, ObjectValue, SequenceValue, Value

# Builtins and classes that go through an iterable to its end, before they do anything else.
_EATERS = frozenset(
    map(
        id,
        (
            list,
            tuple,
            dict,
            set,
            frozenset,
            deque,
            OrderedDict,
            builtins.sorted,
            builtins.min,
            builtins.max,
            torch.Size,
        ),
    )
)


class SymbolicGenerators(SymbolicBase):
    """Steps of generators, and calls that are given one."""

    def resumed(self, generator: GeneratorValue, sent: Value | None = None) -> Enter | Exhausted:
        """The next step. Who asks says by `Then` what the end means."""
        frame = generator.frame
        if frame.is_done:
            return Exhausted(ConstantValue(None))
        if frame.is_running:
            raise GraphBreak("op_raises_on_fake", what="next", error="ValueError")
        if frame.is_started:
            frame.stack.append(ConstantValue(None) if sent is None else sent)
        elif sent is not None and not self.is_none(sent):
            raise GraphBreak("op_raises_on_fake", what="send", error="TypeError")
        return Enter(frame)

    def eaten(self, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Enter | None:
        """A call of a builtin that goes through what runs code; None for every other call."""
        if id(function.object) not in _EATERS or not args or not self.runs_code(args[0]) or "key" in kwargs:
            return None
        rest = SequenceValue(tuple, args[1:])
        return self.enter_polyfill(polyfills.called_with_list, [function, args[0], rest, self.named(kwargs)])

    def enter_polyfill(self, polyfill: Any, args: list[Any]) -> Enter:
        """A frame that the user's program does not have."""
        entered = self.enter_function(ObjectValue(polyfill), args, {})
        assert type(entered) is Enter
        return entered

    def named(self, kwargs: dict[str, Any]) -> DictValue:
        """Keywords as a dict."""
        made = DictValue({})
        for name, value in kwargs.items():
            made.items[self.hash_key(ConstantValue(name))] = (ConstantValue(name), value)
        return made

    def method_of_generator(self, value: Any, name: str, args: list[Any]) -> Any:
        """`send`, `throw`, `close`, `__next__`."""
        match name, len(args):
            case "__next__", 0:
                return self.enter_polyfill(polyfills.next_of, [value])
            case "__iter__", 0:
                return value
            case _ if not isinstance(value, GeneratorValue):
                unsupported(f"method {name}", value)
            case "send", 1:
                return self._sent(value, args[0])
            case "throw", _ if args:
                return self.throw_into(value, args)
            case "close", 0 if value.frame.is_done or not value.frame.is_started:
                value.frame.is_done = True
                return ConstantValue(None)
            case "close", 0:
                return self.enter_polyfill(polyfills.closed, [value])
            case _:
                raise GraphBreak("unsupported_operation", what=f"method {name}", kind="generator")

    def _sent(self, value: GeneratorValue, sent: Any) -> Any:
        """`generator.send(sent)`: what it returns is then raised by the machine."""
        step = self.resumed(value, sent)
        return step if type(step) is Enter else raising(StopIteration)

    def yield_from_iter(self, frame: FrameState, value: Any) -> Any:
        value = self.state.see(value)
        return value if isinstance(value, GeneratorValue) else self.get_iter(value)

    def send(self, receiver: Any, value: Any) -> Any:
        receiver = self.state.see(receiver)
        if isinstance(receiver, GeneratorValue):
            return self.resumed(receiver, value)
        if not self.is_none(value):
            raise GraphBreak("unsupported_operation", what="send()", kind=receiver.kind)
        return self.next(receiver)
