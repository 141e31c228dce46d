"""Guards: the conditions under which a segment is valid for a frame's slots and stack.

Counterpart: torch/_dynamo/guards.py GuardBuilder, CheckFunctionManager
Differs: a guard is a record that gives one Python expression. One generated function per segment reads every source once and
checks the guards in the order in which they were added. There is no C++ guard manager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any

import torch

from refimpl._torch import no_torch_function, tensor_keys, without_overrides
from refimpl.aot.analysis.subclasses import WrapperLayout, dense_parts, layout_of, same_context
from refimpl.aot.call_checks import is_pinned_by_contiguity
from refimpl.capture.breaks import UserLine
from refimpl.capture.guards.sources import CachedCallSource, DimensionSource, ReaderBuilder, Source
from refimpl.capture.guards.torch_state import state_condition
from refimpl.capture.public.marks import DYNAMIC
from refimpl.symbolic.guards import PRINTED_NAMES
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source as SymbolicSource

Constant = Callable[[Any], str]
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class GuardKind(Enum):
    """The kinds of conditions on an object."""

    TYPE = "its class"
    ID = "it is the object that was seen"
    ADDRESS = "its id"
    EQUALS = "its class and value"
    FINITE = "a float that is neither nan nor infinite nor -0.0"
    LENGTH = "its length"
    AT_LEAST = "it is no shorter"
    KEYS = "its keys, in order"
    LACKS = "it has no such key"
    WITHOUT = "it has no such attribute"
    HAS = "it has such an attribute"
    EMPTY = "it is empty"
    TENSOR = "class, dtype, device, sizes, strides, requires_grad and dispatch keys of a tensor"
    WRAPPER = "class, context and the tensors inside of a wrapper of tensors"
    MODES = "how many modes answer calls of torch's functions"
    MARKS = "only dimensions that are symbols are marked to be dynamic"
    DISTINCT = "it is another object than a second one"
    ALL_DISTINCT = "it is another object than each of the others, and these than each other"
    SAME = "it is the object that another way leads to"
    SHAPES = "relations between sizes, strides and integers that are symbols"
    INPUTS = "what the backend holds the inputs of its graph to: where they are in memory"
    STATE = "grad mode, whether autocast is on, default dtype and other state of torch"
    AUTOCAST = "what autocast does, for each device"


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition. `seen`: the value it compares with; `line`: the program's line that needed it."""

    kind: GuardKind
    source: Source
    seen: Any
    line: UserLine | None = None

    def condition(self, read: Callable[[Source], str], constant: Constant) -> str:
        """A Python expression that is true if the guard holds."""
        return _CONDITIONS[self.kind](read(self.source), self.seen, read, constant)

    def __str__(self) -> str:
        return f"{self.kind.name} {self.source.name} {self.seen!r}"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a guard on a tensor compares. `sizes` and `strides` have None for a symbol."""

    class_: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    keys: int
    sizes: tuple[int | None, ...] | None
    strides: tuple[int | None, ...] | None
    is_hidden: bool = False  # whether reading a fact of the tensor may run code of the program's

    def hold_for(self, tensor: Any) -> bool:
        """Whether a tensor of a class of the program has these facts. Runs no code of the class."""
        if type(tensor) is not self.class_:
            return False
        with without_overrides():
            found = tensor.shape, tensor.stride() if tensor.layout is torch.strided else None
            return (
                tensor_keys(tensor).raw_repr() == self.keys
                and tensor.dtype is self.dtype
                and tensor.device == self.device
                and tensor.requires_grad is self.requires_grad
                and all(map(_fits, found, (self.sizes, self.strides)))
            )

    @property
    def is_static(self) -> bool:
        """Whether every size and stride is a number."""
        numbers = None if self.sizes is None or self.strides is None else (*self.sizes, *self.strides)
        return numbers is not None and None not in numbers

    @classmethod
    def of(cls, tensor: torch.Tensor, fake: torch.Tensor, *, is_hidden: bool = False) -> TensorFacts:
        """The facts of a tensor. A size or stride that is a symbol in its fake is not compared.

        is_hidden: whether modes answer calls of torch's functions.
        """
        asks = getattr(type(tensor), "__torch_function__", no_torch_function) is not no_torch_function
        sizes = _static(tensor.shape, fake.shape)
        strides = _static(tensor.stride(), fake.stride()) if tensor.layout is torch.strided else None
        return cls(
            class_=type(tensor), dtype=tensor.dtype, device=tensor.device, requires_grad=tensor.requires_grad,
            keys=tensor_keys(tensor).raw_repr(), sizes=sizes, strides=strides,
            is_hidden=is_hidden or (asks and type(tensor) not in _PLAIN_CLASSES),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class WrapperFacts:
    """What a guard on a wrapper of tensors compares, besides the facts of the wrapper itself."""

    layout: WrapperLayout
    parts: tuple[TensorFacts | None, ...]  # None for a part that is no tensor

    @classmethod
    def of(cls, wrapper: torch.Tensor, fake: torch.Tensor) -> WrapperFacts:
        """The facts of a wrapper's layout and parts. A size or stride of a part that is a symbol in its fake is not compared."""
        with without_overrides():
            parts = zip(dense_parts(wrapper), dense_parts(fake), strict=True)
            layout = layout_of(wrapper)
            assert layout is not None
            facts = [TensorFacts.of(*both) if isinstance(both[0], torch.Tensor) else None for both in parts]
        return cls(layout, tuple(facts))

    def hold_for(self, wrapper: Any) -> bool:
        """Whether a tensor of the same class has this layout and parts."""
        with without_overrides():
            if not _has_layout(wrapper, self.layout):
                return False
            parts = zip(dense_parts(wrapper), self.parts, strict=True)
            return all(seen is None or seen.hold_for(part) for part, seen in parts)


def _has_layout(value: Any, layout: WrapperLayout | None) -> bool:
    if layout is None:
        return layout_of(value) is None
    if type(value) is not layout.kind:
        return False
    wrapper: Any = value
    names, context = wrapper.__tensor_flatten__()
    return (
        tuple(names) == layout.attributes
        and same_context(layout, value, context)
        and all(_has_layout(getattr(value, name), inner) for name, inner in zip(names, layout.inner, strict=True))
    )


def _static(numbers: Sequence[int], of_fake: Sequence[Any]) -> tuple[int | None, ...]:
    """The numbers where the fake has no symbols. A fake without elements may have other strides; the tensor's are taken."""
    return tuple(number if type(fake) is int else None for number, fake in zip(numbers, of_fake, strict=True))


def _equals(value: str, seen: Any, constant: Constant) -> str:
    same_class = f"type({value}) is {constant(type(seen))}"
    if isinstance(seen, float) and seen != seen:
        return f"{same_class} and {value} != {value}"
    if isinstance(seen, float) and seen == 0:
        return f"{same_class} and {value} == 0 and {constant(math.copysign)}(1, {value}) == {math.copysign(1, seen)}"
    if type(seen) in (int, bool, str, bytes) or (type(seen) is float and math.isfinite(seen)):
        return f"{same_class} and {value} == {seen!r}"
    if isinstance(seen, complex):
        return f"{same_class} and repr({value}) == {repr(seen)!r}"
    return f"{same_class} and {value} == {constant(seen)}"


def _keys(value: str, seen: list[Any], constant: Constant) -> str:
    """Compares keys and their classes: `1` and `True` are equal keys."""
    same = f"[*{value}] == {constant(seen)}"
    if all(type(key) is str for key in seen):
        return same
    return f"{constant(_classes_of)}([*{value}]) == {constant(_classes_of(seen))} and {same}"


def _classes_of(keys: Sequence[Any]) -> list[Any]:
    """The ids of the classes of keys, because `==` of classes may call a metaclass."""
    return [_classes_of(key) if type(key) is tuple else id(type(key)) for key in keys]


def _fits(numbers: Sequence[int] | None, seen: tuple[int | None, ...] | None) -> bool:
    if numbers is None or seen is None:
        return numbers is None and seen is None
    return len(numbers) == len(seen) and all(
        known is None or number == known for number, known in zip(numbers, seen, strict=True)
    )


def _tensor(value: str, seen: TensorFacts, constant: Constant) -> str:
    """Compares dispatch keys first: reading the sizes of a tensor with another layout may raise."""
    if seen.is_hidden:
        return f"{constant(seen.hold_for)}({value})"
    return f"type({value}) is {constant(seen.class_)} and {_facts(value, seen, constant)}"


def _facts(value: str, seen: TensorFacts, constant: Constant) -> str:
    """Compares everything but the class."""
    parts = [
        f"{constant(tensor_keys)}({value}).raw_repr() == {seen.keys}",
        f"{value}.dtype is {constant(seen.dtype)}",
        f"{value}.requires_grad is {seen.requires_grad}",
        *_numbers(f"{value}.shape", seen.sizes),
        *([] if seen.strides is None else _numbers(f"{value}.stride()", seen.strides)),
    ]
    if seen.device.type != "cpu":  # there is one CPU, and the dispatch keys name it
        parts.append(f"{value}.device == {constant(seen.device)}")
    return " and ".join(parts)


_FEW = 4  # up to this many tensors, separate conditions are faster than loops in C
_keys_number: Any = type(tensor_keys(torch.empty(0, device="cpu"))).raw_repr
_fields: Any = torch.Tensor
_dtype, _device, _requires_grad = map(attrgetter, ("dtype", "device", "requires_grad"))
_shape = _fields.size


def _facts_of_many(tensors: Sequence[tuple[str, TensorFacts]], builder: ReaderBuilder) -> list[str]:
    """Conditions for many tensors of known classes without symbols: each fact of all tensors in one loop in C."""
    constant = builder.constant

    def all_have(read: Callable[[Any], Any], expected: Sequence[tuple[str, Any]]) -> str:
        loop = f"map({constant(read)}, {builder.tuple_of([name for name, _ in expected])})"
        values = [value for _, value in expected]
        if type(values[0]) is bool and values.count(values[0]) == len(values):
            return f"all({loop})" if values[0] else f"not any({loop})"
        return f"[*{loop}] == {constant(values)}"

    everything = builder.tuple_of([name for name, _ in tensors])
    keys = [seen.keys for _, seen in tensors]
    conditions = [
        f"[*map({constant(_keys_number)}, map({constant(tensor_keys)}, {everything}))] == {constant(keys)}",
        all_have(_dtype, [(name, seen.dtype) for name, seen in tensors]),
        all_have(_requires_grad, [(name, seen.requires_grad) for name, seen in tensors]),
        all_have(_shape, [(name, seen.sizes) for name, seen in tensors]),
    ]
    pinned = [(name, True) for name, seen in tensors if _is_pinned_by_contiguity(seen)]
    if pinned:
        conditions.append(all_have(torch.Tensor.is_contiguous, pinned))
    others = [(name, seen.strides) for name, seen in tensors if not _is_pinned_by_contiguity(seen)]
    if others:
        conditions.append(all_have(torch.Tensor.stride, others))
    elsewhere = [(name, seen.device) for name, seen in tensors if seen.device.type != "cpu"]
    if elsewhere:
        conditions.append(all_have(_device, elsewhere))
    return conditions


def _is_pinned_by_contiguity(seen: TensorFacts) -> bool:
    """Whether being contiguous with these sizes implies these strides."""
    assert seen.sizes is not None
    sizes = [size for size in seen.sizes if size is not None]
    return is_pinned_by_contiguity(sizes, [stride for stride in seen.strides or () if stride is not None])


@dataclass(frozen=True, slots=True, eq=False)
class ShapeFacts:
    """What the shape env assumes about inputs. Read at the end, because a backend may add to it."""

    shape_env: ShapeEnv
    inputs: tuple[tuple[Any, Source], ...]  # fake tensors and symbolic integers, as they were at the entry

    def condition(self, read: Callable[[Source], str]) -> str:
        """All of it as one expression."""
        return " and ".join(f"({line})" for line in self.lines(read)) or "True"

    def lines(self, read: Callable[[Source], str]) -> list[str]:
        """Each assumption as an expression."""
        numbers = self.numbers()
        sources = [SymbolicSource(name, name) for name in (read(source) for _, source in numbers)]
        return self.shape_env.produce_guards([number for number, _ in numbers], sources)

    def numbers(self) -> list[tuple[Any, Source]]:
        """The symbolic integers of all inputs, each with its source."""
        return [number for value, source in self.inputs for number in _symbols_of(value, source)]


@dataclass(frozen=True, slots=True, eq=False)
class InputFacts:
    """A backend's condition on the graph's inputs."""

    holds: Callable[[Sequence[Any]], bool]
    sources: tuple[Source, ...]

    def condition(self, read: Callable[[Source], str], constant: Constant) -> str:
        """A call of the condition."""
        return f"{constant(self.holds)}(({''.join(f'{read(source)}, ' for source in self.sources)}))"


def _symbols_of(value: Any, source: Source) -> list[tuple[Any, Source]]:
    """The symbolic integers of one input, each with its source: the code that reads it from the arguments."""
    if not isinstance(value, torch.Tensor):
        return [(value, source)]
    found: list[tuple[Any, Source]] = [
        (size, DimensionSource(source, "size", dim)) for dim, size in enumerate(value.shape)
    ]
    if value.layout is torch.strided:
        found += [(step, DimensionSource(source, "stride", dim)) for dim, step in enumerate(value.stride())]
        found.append((value.storage_offset(), DimensionSource(source, "storage_offset")))
    return [(number, way) for number, way in found if isinstance(number, torch.SymInt)]


def _numbers(value: str, seen: Sequence[int | None] | None) -> list[str]:
    if seen is None:
        return []
    if None not in seen:
        return [f"{value} == {tuple(seen)!r}"]
    known = [f"{value}[{index}] == {number}" for index, number in enumerate(seen) if number is not None]
    return [f"len({value}) == {len(seen)}", *known]


_CONDITIONS: dict[GuardKind, Callable[[str, Any, Callable[[Source], str], Constant], str]] = {
    GuardKind.TYPE: lambda value, seen, read, constant: f"type({value}) is {constant(seen)}",
    GuardKind.ID: lambda value, seen, read, constant: f"{value} is {constant(seen)}",
    GuardKind.ADDRESS: lambda value, seen, read, constant: f"{constant(id)}({value}) == {seen}",
    GuardKind.EQUALS: lambda value, seen, read, constant: _equals(value, seen, constant),
    GuardKind.FINITE: lambda value, seen, read, constant: (
        f"type({value}) is float and {value} - {value} == 0 and ({value} != 0 or {constant(math.copysign)}(1, {value}) == 1)"
    ),
    GuardKind.LENGTH: lambda value, seen, read, constant: f"len({value}) == {seen}",
    GuardKind.AT_LEAST: lambda value, seen, read, constant: f"len({value}) >= {seen}",
    GuardKind.KEYS: lambda value, seen, read, constant: _keys(value, seen, constant),
    GuardKind.LACKS: lambda value, seen, read, constant: f"{seen!r} not in {value}",
    GuardKind.WITHOUT: lambda value, seen, read, constant: f"not hasattr({value}, {seen!r})",
    GuardKind.HAS: lambda value, seen, read, constant: f"hasattr({value}, {seen!r})",
    GuardKind.EMPTY: lambda value, seen, read, constant: f"not {value}",
    GuardKind.TENSOR: lambda value, seen, read, constant: _tensor(value, seen, constant),
    GuardKind.WRAPPER: lambda value, seen, read, constant: f"{constant(seen.hold_for)}({value})",
    GuardKind.MODES: lambda value, seen, read, constant: f"{value}() == {seen}",
    GuardKind.DISTINCT: lambda value, seen, read, constant: f"{value} is not {read(seen)}",
    GuardKind.ALL_DISTINCT: lambda value, seen, read, constant: (
        f"len({{*map({constant(id)}, ({value}, {', '.join(map(read, seen))}))}}) == {len(seen) + 1}"
    ),
    GuardKind.MARKS: lambda value, seen, read, constant: (
        f"(not hasattr({value}, {DYNAMIC!r}) or {value}.{DYNAMIC} <= {constant(seen)})"
    ),
    GuardKind.SAME: lambda value, seen, read, constant: f"{value} is {read(seen)}",
    GuardKind.SHAPES: lambda value, seen, read, constant: seen.condition(read),
    GuardKind.INPUTS: lambda value, seen, read, constant: seen.condition(read, constant),
    GuardKind.STATE: lambda value, seen, read, constant: state_condition(seen, constant),
    GuardKind.AUTOCAST: lambda value, seen, read, constant: f"{value}() == {constant(seen)}",
}


@dataclass(slots=True)
class GuardList:
    """The guards of a segment, each once, in order."""

    guards: dict[tuple[Any, ...], Guard] = field(default_factory=dict)

    def add(self, guard: Guard) -> None:
        self.guards.setdefault((guard.kind, guard.source, _key(guard.seen)), guard)

    def __iter__(self) -> Any:
        return iter(self.guards.values())

    def __len__(self) -> int:
        return len(self.guards)

    def reader(self, wanted: Sequence[Source], frames: int) -> Callable[..., tuple[Any, ...] | None]:
        """Compiles the guards into a function of the slots and stack of each of so many frames. It returns the objects of the
        wanted sources; None where a guard fails.
        """
        builder = ReaderBuilder(constants=dict(PRINTED_NAMES))
        tensors: list[tuple[str, TensorFacts]] = []  # tensors of which only the class is checked so far
        for guard in self:
            if guard.kind is GuardKind.TENSOR and guard.seen.is_static and not guard.seen.is_hidden:
                name = builder.read(guard.source)
                builder.lines.append(f"if type({name}) is not {builder.constant(guard.seen.class_)}: return None")
                tensors.append((name, guard.seen))
                continue
            if tensors and _needs_known_tensors(guard):
                _append_facts(builder, tensors)
                tensors = []
            if guard.kind is GuardKind.ALL_DISTINCT:
                objects = [builder.read(source) for source in (guard.source, *guard.seen)]
                builder.lines.append(f"if not ({_all_distinct(objects, builder)}): return None")
                continue
            condition = guard.condition(builder.read, builder.constant)
            # Attributes that have to be empty are checked once.
            refusal = condition.removeprefix("not ") if guard.kind is GuardKind.EMPTY else f"not ({condition})"
            builder.lines.append(f"if {refusal}: return None")
        _append_facts(builder, tensors)
        names = [builder.read(source) for source in wanted]
        return builder.function(builder.tuple_of(names), name="check", frames=frames)

    def failing(self, frames: Any) -> Guard | None:
        """The first guard that does not hold now: the reason for a recompile."""
        for guard in self:
            builder = ReaderBuilder(constants=dict(PRINTED_NAMES))
            condition = guard.condition(builder.read, builder.constant)
            if not builder.function(f"bool({condition})", name="explain")(frames):
                return guard
        return None


def _all_distinct(values: Sequence[str], builder: ReaderBuilder) -> str:
    if len(values) == 2:
        return f"{values[0]} is not {values[1]}"
    return f"len({{*map({builder.constant(id)}, {builder.tuple_of(values)})}}) == {len(values)}"


def _needs_known_tensors(guard: Guard) -> bool:
    """Whether the guard needs the facts of tensors checked first: reading it may raise for another layout, or call the
    program's cached function, which may read tensors.
    """
    kinds = (DimensionSource, CachedCallSource)
    return guard.kind in (GuardKind.SHAPES, GuardKind.INPUTS) or any(
        isinstance(source, kinds) for source in guard.source.way()
    )


def _append_facts(builder: ReaderBuilder, tensors: Sequence[tuple[str, TensorFacts]]) -> None:
    """Adds lines that check tensors of known classes."""
    if len(tensors) < _FEW:
        conditions = [_facts(name, seen, builder.constant) for name, seen in tensors]
    else:
        conditions = _facts_of_many(tensors, builder)
    builder.lines += [f"if not ({condition}): return None" for condition in conditions]


def _key(seen: Any) -> Any:
    """A key under which equal guards meet: objects by identity, constants by value."""
    if type(seen) in (int, str, bool, type(None)) or isinstance(seen, Source):
        return type(seen), seen
    return id(seen)
