"""Generators made in the segment, and iterators written in C that are implemented by such generators.

Counterpart: torch/_dynamo/variables/functions.py LocalGeneratorObjectVariable
Differs: the machine resumes the generator's frame itself.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.instructions import Op
from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.generators import make_generator
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.error import ErrorValue
from refimpl.capture.values.iterator import AnyIteratorValue
from refimpl.capture.values.value import UserRaise, Value, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_CONCRETE = ConcreteDomain()  # runs the generators that outlive their segment
_METHODS = ("__next__", "__iter__", "send", "throw", "close")


class GeneratorValue(AnyIteratorValue):
    """A generator made in the segment, with its suspended frame, which holds values."""

    __slots__ = ("frame", "name", "qualname")

    def __init__(self, frame: Any, name: str, qualname: str) -> None:
        super().__init__()
        self.frame = frame
        self.name = name
        self.qualname = qualname

    def class_of(self) -> type:
        return GeneratorType

    def runs_code(self, domain: SymbolicDomain) -> bool:
        return True

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return NativeMethodValue(self, name) if name in _METHODS else super().load_attr(domain, name)

    def next(self, domain: SymbolicDomain) -> Enter | Exhausted:
        return self.resumed(domain)

    def resumed(self, domain: SymbolicDomain, sent: Value | None = None) -> Enter | Exhausted:
        """Resumes the generator. The caller's `Then` says what to do when it ends."""
        frame = self.frame
        if frame.is_done:
            return Exhausted(ConstantValue(None))
        if frame.is_running:
            raising(ValueError, "generator already executing")
        if frame.is_started:
            frame.stack.append(ConstantValue(None) if sent is None else sent)
        elif sent is not None and not domain.is_none(sent):
            raising(TypeError, "can't send non-None value to a just-started generator")
        return Enter(frame)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        match name, len(args):
            case "__iter__", 0:
                return super().call_method(domain, frame, name, args, kwargs)
            case _ if kwargs:
                unsupported(f"method {name}", self)
            case ("__next__", 0) | ("send", 1):
                step = self.resumed(domain, *args)
                # The machine raises StopIteration with the result.
                return step if type(step) is Enter else raising(StopIteration)
            case "throw", _ if args:
                return self._thrown(domain, args)
            case "close", 0 if self.frame.is_done or not self.frame.is_started:
                self.frame.is_done = True
                return ConstantValue(None)
            case "close", 0:
                return domain.enter_polyfill(polyfills.closed, [self])
            case _:
                raise GraphBreak("unsupported_operation", what=f"method {name}", kind="generator")

    def _thrown(self, domain: SymbolicDomain, args: list[Any]) -> Any:
        """`generator.throw(error)`."""
        frame = self.frame
        error = domain.as_error(args[1] if len(args) > 1 and not domain.is_none(args[1]) else args[0])
        if not isinstance(error, ErrorValue) or len(args) > 3 or frame.is_running:
            unsupported("method throw", self)
        if frame.is_done:
            raise UserRaise(error=error)
        if frame.is_started:
            if frame.current.arg:  # it is in a `yield from`
                unsupported("method throw", self)
            frame.stack.append(ConstantValue(None))  # where `send` puts its value
        return Enter(frame, thrown=error)

    def rebuilt(self, emitter: Any) -> str:
        if self.frame.is_running or self.frame.handled is not None:
            return super().rebuilt(emitter)
        made, names = emitter.frame(self.frame), f"{self.name!r}, {self.qualname!r}"
        return emitter.named(
            self, f"{emitter.constant(make_generator)}({made}, {emitter.constant(_CONCRETE.run)}, {names})"
        )


class NativeIteratorValue(AnyIteratorValue):
    """An iterator of a class written in C (`map`, `itertools.islice`), implemented by a generator of the segment."""

    __slots__ = ("class_", "generator", "recipe")

    def __init__(self, class_: type, generator: GeneratorValue, recipe: Any) -> None:
        super().__init__()
        self.class_ = class_
        self.generator = generator
        self.recipe = (
            # takes the generator's variables, returns the expression that makes the iterator; see `rules/lazy_iterators.py`
            recipe
        )

    @property
    def kind(self) -> str:
        return self.class_.__name__

    def class_of(self) -> type:
        return self.class_

    def runs_code(self, domain: SymbolicDomain) -> bool:
        return True

    def next(self, domain: SymbolicDomain) -> Enter | Exhausted:
        return self.stepped().resumed(domain)

    def stepped(self) -> GeneratorValue:
        """The generator behind it. Breaks the graph if that ended by an exception, after which an iterator written in C may go
        on.
        """
        frame = self.generator.frame
        if frame.is_done and frame.is_started and frame.current.op is not Op.RETURN_VALUE:
            unsupported("next() after an exception", self)
        return self.generator

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, self.recipe(emitter, self.generator.frame))
