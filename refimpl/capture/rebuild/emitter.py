"""Straight-line Python that makes, after the graph has run, the objects that a segment leaves: its result, or frames.

Counterpart: torch/_dynamo/codegen.py PyCodegen; torch/_dynamo/resume_execution.py
Differs: Python source of one function, not bytecode; frames are data and need no function made for them.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import fx

from refimpl._torch import set_grad_enabled
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import ConcreteDomain
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.interpreter.generators import make_generator
from refimpl.capture.public.numpy_interop import to_numpy_helper, to_numpy_scalar
from refimpl.capture.symbolic.class_definitions import BUILD_CLASS
from refimpl.capture.symbolic.effects import EffectLog
from refimpl.capture.values import (
    ArrayValue,
    AttributesValue,
    CellValue,
    CombinedIteratorValue,
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    FoundIteratorValue,
    FrozenDictValue,
    FunctionValue,
    GeneratorValue,
    GetterValue,
    InstanceValue,
    IteratorValue,
    MethodValue,
    NativeIteratorValue,
    NativeMethodValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    ReversedValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    TensorValue,
    TracebackValue,
    UnmadeClassValue,
    UnreadValue,
    Value,
)
from refimpl.capture.values.classes import is_named_tuple
from refimpl.capture.values.error import native_base
from refimpl.capture.values.polyfills import FunctionContext
from refimpl.capture.values.set import DictOf, ListOf, SetAt

_CONCRETE = ConcreteDomain()  # runs generators that outlive the segment that made them
_MOST_REMADE = 200
_LITERALS = (int, str, bool, type(None), bytes)


class Emitter:
    """Collects lines. A value is made once, whatever refers to it.

    The function that comes of it takes `out`, what the graph gave, and `kept`, what was read when the segment was entered.
    """

    def __init__(self) -> None:
        self.outputs: list[fx.Node] = []
        self.sources: list[Source] = []  # of what is kept, once it is settled
        self._kept_names: dict[Source, str] = {}
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._made: list[Any] = []  # whose ids are in `_names`
        self._constants: dict[str, Any] = {}
        self._constant_names: dict[int, str] = {}
        self.frames_made: set[int] = set()  # by id
        self._settled: set[int] = set()  # by id, sets that were there and are as they are in the end
        self._remade = 0  # sets that are made as they were once

    # ---------------------------------------------------------------------------------------------------------- values

    def expression(self, value: Any) -> str:
        """An expression for the object."""
        if value is UNBOUND:
            return self.constant(UNBOUND)
        known = self._names.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Value) and value.source is not None and not isinstance(value, ConstantValue):
            return self._named(value, self._kept(value.source))
        return self._new(value)

    def _new(self, value: Value) -> str:
        match value:
            case UnreadValue():
                return self._kept(value.way)
            case ConstantValue():
                return self.constant(value.value)
            case TensorValue():
                return self._named(value, self._output(value.node))
            case ArrayValue():
                made = self.constant(to_numpy_scalar if value.is_scalar else to_numpy_helper)
                return self._named(value, f"{made}({self._output(value.node)})")
            case NumberValue() if value.node is not None and not isinstance(value.number, torch.SymBool):
                return self._named(value, self._output(value.node))
            case NumberValue() if value.node is not None and not _is_known(value.number):
                return self._named(value, self._output(value.node))
            case NumberValue():
                return repr(bool(value.number))
            case SequenceValue():
                return self._sequence(value)
            case SetValue():
                return self._set(value)
            case PartialValue():
                return self._partial(value)
            case NativeIteratorValue():
                return self._named(value, value.rebuild(self, value.generator.frame))
            case AttributesValue():
                return self._named(value, f"{self.expression(value.owner)}.__dict__")
            case DictValue():
                name = self._named(value, self._empty_dict(value))
                for key, item in value.items.values():
                    self._lines.append(f"{name}[{self.expression(key)}] = {self.expression(item)}")
                return name
            case DictViewValue() if isinstance(value.over, FrozenDictValue):
                raise GraphBreak("cannot_rebuild", kind=value.kind)
            case DictViewValue():
                return self._named(value, f"{self.expression(value.over)}.{value.which}()")
            case SliceValue():
                return self._named(value, f"slice({self._list(value.parts)})")
            case IteratorValue():
                return self._iterator(value)
            case CombinedIteratorValue():
                parts = self._list(value.parts)
                count = f", {value.count}" if value.class_ is enumerate else ""
                return self._named(value, f"{value.class_.__name__}({parts}{count})")
            case MethodValue():
                function = self.expression(value.function)
                return self._named(value, f"{self.constant(MethodType)}({function}, {self.expression(value.receiver)})")
            case NativeMethodValue():
                return self._named(value, f"getattr({self.expression(value.receiver)}, {value.name!r})")
            case SuperValue():
                return self._named(value, f"super({self.constant(value.class_)}, {self.expression(value.receiver)})")
            case FunctionValue():
                return self._function(value)
            case UnmadeClassValue():
                return self._class(value)
            case GeneratorValue():
                return self._generator(value)
            case CellValue():
                name = self._named(value, f"{self.constant(CellType)}()")
                if value.content is not UNBOUND:
                    self._lines.append(f"{name}.cell_contents = {self.expression(value.content)}")
                return name
            case ErrorValue():
                return self._error(value)
            case TracebackValue():
                raise GraphBreak("cannot_rebuild", kind="traceback").restarting_at(value.error.raised_at)
            case InstanceValue() if value.class_ is FunctionContext:
                raise GraphBreak("cannot_rebuild", kind=value.kind)
            case InstanceValue():
                new = object.__new__ if value.inside is None else dict.__new__
                name = self._named(value, f"{self.constant(new)}({self.constant(value.class_)})")
                if value.inside is not None:
                    setter = self.constant(value.inside.class_.__setitem__)
                    for key, item in value.inside.items.values():
                        self._lines.append(f"{setter}({name}, {self.expression(key)}, {self.expression(item)})")
                for attribute, content in value.attributes.items():
                    setter = self.constant(object.__setattr__)
                    self._lines.append(f"{setter}({name}, {attribute!r}, {self.expression(content)})")
                return name
            case ObjectValue():
                return self.constant(value.object)
            case _:
                raise GraphBreak("cannot_rebuild", kind=value.kind)

    def _empty_dict(self, value: DictValue) -> str:
        if isinstance(value, DefaultDictValue):
            return f"{self.constant(defaultdict)}({self.expression(value.factory)})"
        return "{}" if value.class_ is dict else f"{self.constant(value.class_)}()"

    def _set(self, value: SetValue) -> str:
        """By the same steps as in the program: the order depends on them."""
        (template, operands), rest = ("set()", ()), value.steps
        if rest and "{self}" not in rest[0][0]:
            (template, operands), rest = rest[0], rest[1:]
        name = self._named(value, template.format(*map(self._operand, operands)))
        self._set_steps(name, rest)
        return name

    def _set_steps(self, name: str, steps: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        for template, operands in steps:
            self._lines.append(template.format(*map(self._operand, operands), self=name))

    def _operand(self, operand: Any) -> str:
        match operand:
            case SetAt():
                return self._set_at(operand.value, operand.steps)
            case ListOf():
                return f"[{self._list(operand.items)}]"
            case DictOf():
                made = f"dict.fromkeys([{self._list(operand.keys)}])"
                return f"{made}.keys()" if operand.is_view else made
            case _:
                return self.expression(operand)

    def _set_at(self, value: SetValue, count: int) -> str:
        """The set as it was after so many steps."""
        is_now = count == len(value.steps)
        if is_now and (value.source is None or not count or id(value) in self._settled):
            return self.expression(value)
        if value.source is not None:
            raise GraphBreak("cannot_rebuild", kind=value.kind)
        self._remade += 1
        if self._remade > _MOST_REMADE:
            raise GraphBreak("cannot_rebuild", kind=value.kind)
        earlier = SetValue(value.class_)
        earlier.steps = value.steps[:count]
        return self._set(earlier)

    def _partial(self, value: PartialValue) -> str:
        if isinstance(value, GetterValue):
            args, keywords = value.written
            pairs = ", ".join(f"{name!r}: {self.expression(item)}" for name, item in keywords.items())
            return self._named(value, f"{self.constant(value.class_)}({self._list([*args])}, **{{{pairs}}})")
        pairs = ", ".join(f"{name!r}: {self.expression(item)}" for name, item in value.keywords.items())
        named = f", **{{{pairs}}}" if pairs else ""
        args = "".join(f", {self.expression(arg)}" for arg in value.args)
        return self._named(value, f"{self.constant(functools.partial)}({self.expression(value.function)}{args}{named})")

    def _sequence(self, value: SequenceValue) -> str:
        if isinstance(value, DequeValue):
            name = self._named(value, f"{self.constant(deque)}((), {value.maxlen})")
            self._lines.append(f"{name}.extend([{self._list(value.items)}])")
            return name
        if value.class_ is list:
            name = self._named(value, "[]")
            if value.items:
                self._lines.append(f"{name} += [{self._list(value.items)}]")
            return name
        items = "(" + "".join(f"{self.expression(item)}, " for item in value.items) + ")"
        if value.class_ is tuple:
            return self._named(value, items)
        if value.class_ is torch.Size or hasattr(value.class_, "n_sequence_fields"):
            return self._named(value, f"{self.constant(value.class_)}({items})")
        if is_named_tuple(value.class_):
            return self._named(value, f"tuple.__new__({self.constant(value.class_)}, {items})")
        raise GraphBreak("cannot_rebuild", kind=value.kind)

    def _iterator(self, value: IteratorValue) -> str:
        if value.is_exhausted:
            return self._named(value, f"iter({_empty(value.over)})")
        if isinstance(value, ReversedValue):
            name = self._named(value, f"reversed({self.expression(value.of)})")
            self._lines.append(f"{name}.__setstate__({len(value.items) - 1 - value.position})")
            return name
        if isinstance(value.over, (TensorValue, ArrayValue)):
            name = self._named(value, f"iter([{self._list(value.items)}])")
        else:
            name = self._named(value, f"iter({self.expression(value.over)})")
        if value.position:
            is_dict = isinstance(value.over, (DictValue, DictViewValue, SetValue, DequeValue))
            step = (
                f"for _ in range({value.position}): next({name})"
                if is_dict
                else f"{name}.__setstate__({value.position})"
            )
            self._lines.append(step)
        return name

    def _function(self, value: FunctionValue) -> str:
        cells = "".join(f"{self.constant(CellType)}(), " for _ in value.code.co_freevars)  # until the closure is set
        closure = f"({cells})" if cells else "None"
        if value.closure is not None:
            closure = self.expression(value.closure)
        if (known := self._names.get(id(value))) is not None:
            return known  # made meanwhile, for a cell of its closure holds it
        name = self._named(
            value,
            f"{self.constant(FunctionType)}({self.constant(value.code)}, {self.constant(value.globals)}, None, None, {closure})",
        )
        if value.qualname is not None:
            self._lines.append(f"{name}.__qualname__ = {value.qualname!r}")
        if value.defaults is not None:
            self._lines.append(f"{name}.__defaults__ = {self.expression(value.defaults)}")
        if value.keyword_defaults is not None:
            self._lines.append(f"{name}.__kwdefaults__ = {self.expression(value.keyword_defaults)}")
        for attribute, content in value.attributes.items():
            self._lines.append(f"setattr({name}, {attribute!r}, {self.expression(content)})")
        if value.annotations is not None:
            self._lines.append(
                f"{name}.__annotations__ = {self.constant(_annotations)}({self.expression(value.annotations)})"
            )
        return name

    def _class(self, value: UnmadeClassValue) -> str:
        parts = f"{self.expression(value.body)}, {value.name!r}, {self._list(value.bases)}"
        if (known := self._names.get(id(value))) is not None:
            return known
        return self._named(value, f"{self.constant(BUILD_CLASS)}({parts})")

    def _generator(self, value: GeneratorValue) -> str:
        frame = value.frame
        if frame.is_running or frame.handled is not None:
            raise GraphBreak("cannot_rebuild", kind="generator")
        made = self.frame(frame)
        names = f"{value.name!r}, {value.qualname!r}"
        return self._named(value, f"{self.constant(make_generator)}({made}, {self.constant(_CONCRETE.run)}, {names})")

    def _error(self, value: ErrorValue) -> str:
        if value.args is None or value.raised_at is not None:
            raise GraphBreak("cannot_rebuild", kind=value.kind).restarting_at(value.raised_at)
        class_ = self.constant(value.class_)
        name = self._named(value, f"{class_}.__new__({class_}, {self._list(value.args)})")
        self._lines.append(f"{self.constant(native_base(value.class_).__init__)}({name}, {self._list(value.args)})")
        for attribute, content in value.attributes.items():
            setter = self.constant(object.__setattr__)
            self._lines.append(f"{setter}({name}, {attribute!r}, {self.expression(content)})")
        return name

    def _list(self, values: Sequence[Any]) -> str:
        return ", ".join(self.expression(value) for value in values)

    def _kept(self, source: Source) -> str:
        return self._kept_names.setdefault(source, f"k{len(self._kept_names)}")

    def settle(self, inputs: Sequence[Source]) -> None:
        """What is kept: the inputs of the graph, then what else is needed."""
        first = {*inputs}
        self.sources = [*inputs, *(source for source in self._kept_names if source not in first)]

    def _output(self, node: fx.Node) -> str:
        if node not in self.outputs:
            self.outputs.append(node)
        return f"out[{self.outputs.index(node)}]"

    def _named(self, value: Any, expression: str) -> str:
        name = self._names[id(value)] = f"v{len(self._names)}"
        self._made.append(value)
        self._lines.append(f"{name} = {expression}")
        return name

    def constant(self, found: Any) -> str:
        """An expression for an object that the segment keeps."""
        if type(found) in _LITERALS:
            return repr(found)
        name = self._constant_names.get(id(found))
        if name is None:
            name = self._constant_names[id(found)] = f"c{len(self._constants)}"
            self._constants[name] = found
        return name

    # --------------------------------------------------------------------------------------------------------- effects

    def advance(self, iterators: Sequence[FoundIteratorValue]) -> None:
        """Lines that take of iterators that were there before what the segment took: before what they go through is changed."""
        for iterator in iterators:
            if iterator.position or iterator.is_exhausted:
                name = self.expression(iterator)
                self._lines += [f"for _ in range({iterator.position}): next({name})"] if iterator.position else []
                self._lines += [f"next({name}, None)"] if iterator.is_exhausted else []

    def effects(self, log: EffectLog) -> None:
        """Lines that do to the objects that were there before what the segment did to their values."""
        for value in log.contents():
            name = self.expression(value)
            match value:
                case SetValue():
                    self._set_steps(name, value.steps)
                    self._settled.add(id(value))
                case DequeValue():
                    items = f"[{self._list(value.items)}]"
                    self._lines += [f"items = {items}", f"{name}.clear()", f"{name}.extend(items)"]
                case SequenceValue():
                    self._lines.append(f"{name}[:] = [{self._list(value.items)}]")
                case DictValue():
                    self._dict_effects(name, log.before(value), value.items)
                case CellValue() if value.content is UNBOUND:
                    self._lines.append(f"del {name}.cell_contents")
                case CellValue():
                    self._lines.append(f"{name}.cell_contents = {self.expression(value.content)}")
        for value, attribute, new in log.attributes():
            self._lines.append(f"setattr({self.expression(value)}, {attribute!r}, {self.expression(new)})")
        for namespace, variable, new in log.globals():
            self._lines.append(f"{self.constant(namespace)}[{variable!r}] = {self.expression(new)}")

    def _dict_effects(self, name: str, before: dict[Any, Any], after: dict[Any, Any]) -> None:
        """Only what differs, where that gives the order too: an iterator may be under way."""
        stays = [key for key in before if key in after]
        if [*after][: len(stays)] != stays:
            pairs = [f"({self.expression(key)}, {self.expression(item)})" for key, item in after.values()]
            self._lines += [f"pairs = [{', '.join(pairs)}]", f"{name}.clear()", f"{name}.update(pairs)"]
            return
        gone = [f"del {name}[{self.expression(key)}]" for hashed, (key, _) in before.items() if hashed not in after]
        new = [
            f"{name}[{self.expression(key)}] = {self.expression(item)}"
            for hashed, (key, item) in after.items()
            if hashed not in before or before[hashed][1] is not item
        ]
        self._lines += [*gone, *new]

    def grad_mode(self, is_on: bool) -> None:
        """What grad mode is after the segment, where it is not what it was before."""
        self._lines.append(f"{self.constant(set_grad_enabled)}({is_on})")

    # ---------------------------------------------------------------------------------------------------------- frames

    def state(self, frame: FrameState) -> str:
        """An expression for slots and stack of the frame that the segment began in."""
        self.frames_made.add(id(frame))
        return f"[{self._list(frame.slots)}], [{self._list(frame.stack)}]"

    def frame(self, frame: FrameState) -> str:
        """An expression for the frame of a generator, which goes on where it is."""
        self.frames_made.add(id(frame))
        slots = self._list(frame.slots)
        stack = self._list(frame.stack)
        code, globals_ = self.constant(frame.code), self.constant(frame.globals)
        made = f"{self.constant(FrameState)}(code={code}, slots=[{slots}], globals={globals_}"
        made += f", builtins={self.constant(frame.builtins)}, stack=[{stack}], offset={frame.offset}"
        return f"{made}, then={self.constant(frame.then)}, is_done={frame.is_done})"

    def function(self, result: str) -> Callable[[Any, Any], Any]:
        """The function of `out` and `kept` that gives the result."""
        names = "".join(f"{self._kept_names.get(source, '_')}, " for source in self.sources)
        unpacked = [f"({names}) = kept"] if names else []
        body = "".join(f"    {line}\n" for line in [*unpacked, *self._lines, f"return {result}"])
        source = f"def rebuild(out, kept):\n{body}"
        namespace: dict[str, Any] = dict(self._constants)
        exec(compile(source, "<rebuild of a segment>", "exec"), namespace)
        made = namespace["rebuild"]
        made.source = source
        return made


def _is_known(truth: Any) -> bool:
    """Whether it depends on sizes alone, so that a guard can hold it to what it is."""
    return truth.node.has_hint()


def _annotations(pairs: Any) -> dict[Any, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True)) if isinstance(pairs, tuple) else pairs


def _empty(over: Value) -> str:
    """What has the same class of iterator and gives nothing."""
    match over:
        case DictViewValue():
            return f"{{}}.{over.which}()"
        case DictValue():
            return "{}"
        case SetValue():
            return "set()"
        case ConstantValue() if type(over.value) in (str, bytes):
            return repr(type(over.value)())
        case ConstantValue():
            return "range(0)"
        case SequenceValue() if over.class_ is list:
            return "[]"
        case _:
            return "()"
