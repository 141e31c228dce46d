"""State of a graph's lowering: its steps and buffers; and the table of lowerings by operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from refimpl.codegen.emulator import POINTER_TYPES
from refimpl.codegen.indices import ONE, ZERO, contiguous_strides, is_provably_equal, linear, to_index
from refimpl.codegen.loop_ir import (
    IDENTITIES,
    Buffer,
    Extern,
    Nest,
    Output,
    Reduction,
    ReductionKind,
    SizeExpression,
    Step,
    Write,
    identity,
    new_axis,
)
from refimpl.codegen.loop_simplification import normalised
from refimpl.codegen.lowering.splitting import SPLITTABLE, Split, in_parts, place_in_whole, split_of
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.scalars import Apply, FromIndex, Guarded, Literal, Load, Scalar, indirect_scalar
from refimpl.codegen.sizes import NO_FACTS, SizeFacts
from refimpl.codegen.strided import strides_of
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.symbolic.functions import FloorDiv
from refimpl.trace.dtypes import rounded_number

# An index for every dimension, and the symbols in it whose values are loaded from memory.
Place = tuple[Indices, list[tuple[sympy.Symbol, Scalar]]]

# (state, node, *arguments, **keywords) -> the node's lowered value. Arguments are lowered: a Tensor for a tensor, an expression
# for a symbolic number. Raises NotLowered for unsupported calls.
Rule = Callable[..., Any]


# Dtypes of tensors in kernels: Triton's, without the wide unsigned integers, which few of eager's kernels support.
KERNEL_DTYPES = frozenset(dtype for dtype in POINTER_TYPES if dtype.is_signed or dtype.itemsize == 1)
HALF = (torch.float16, torch.bfloat16)


# The longest scan in one block. Longer cumulative sums are scanned in parts, and so are the parts' totals.
LONGEST_SCAN = 4096
SCANNED_PART = 2048


class NotLowered(Exception):
    """Why a call is not lowered; the operator's own kernel runs instead."""


class RuleTable(dict[Any, Rule]):
    """Lowerings by operator overload."""

    def rule(self, *targets: Any) -> Callable[[Rule], Rule]:
        """Registers a function as the lowering of operator overloads."""

        def register(function: Rule) -> Rule:
            for target in targets:
                assert target not in self, target
                self[target] = function
            return function

        return register


@dataclass
class LoweringState:
    """The lowering of one graph so far."""

    options: CodegenOptions = field(default_factory=CodegenOptions)
    steps: list[Step] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    copies: set[str] = field(default_factory=set)
    """Buffers that `copy` has made."""
    facts: SizeFacts = NO_FACTS
    seeds: dict[torch.device, Extern] = field(default_factory=dict)
    """Calls that draw one seed per device and call of the graph, before all other steps."""
    draws: int = 0

    def seed(self, device: torch.device) -> Scalar:
        """The seed of random numbers on a device."""
        if device not in self.seeds:
            name = f"seed_{len(self.seeds)}"
            buffer = Buffer(name, (ONE,), (ONE,), torch.int64, device)
            self.seeds[device] = Extern(
                target=torch.ops.aten.randint.low,
                arguments=(0, 2**63 - 1, (1,)),
                keywords={"dtype": torch.int64, "device": device},
                outputs=(Output(buffer=buffer),),
                is_list=False,
                reads=frozenset(),
                writes=frozenset(),
                origin=name,
                reason="drawn from the device's generator",
            )
        return Load(f"seed_{list(self.seeds).index(device)}", ZERO, torch.int64)

    def next_draw(self) -> int:
        """The number of a random operator in the graph."""
        self.draws += 1
        return self.draws - 1

    def new_buffer(
        self, shape: Sequence[Any], dtype: torch.dtype, device: torch.device, strides: Sequence[Any] | None = None
    ) -> Buffer:
        """A buffer for a nest or a call to fill; contiguous unless strides are given."""
        sizes = tuple(to_index(size) for size in shape)
        steps = contiguous_strides(sizes) if strides is None else tuple(to_index(step) for step in strides)
        buffer = Buffer(f"buf{len(self.buffers)}", sizes, steps, dtype, device)
        self.buffers[buffer.name] = buffer
        return buffer

    def store(self, tensor: Tensor, strides: Sequence[Any] | None = None, origins: tuple[str, ...] = ()) -> Stored:
        """The tensor in memory: as it is if it is there with these strides, else stored by a new nest."""
        if isinstance(tensor, Stored) and (strides is None or have_strides(tensor, strides)):
            return tensor
        buffer = self.new_buffer(tensor.shape, tensor.dtype, tensor.device, strides)
        if ZERO in tensor.shape:
            return self._empty(buffer, origins, "no elements")
        if isinstance(tensor, Stored) and tensor.dtype not in KERNEL_DTYPES:
            return self._copied_by_a_call(tensor, buffer, origins)
        axes = [new_axis(size) for size in tensor.shape]
        indices = tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)
        kept = tuple(axis for axis in axes if axis.size != ONE)
        nest = Nest(
            axes=kept,
            reduced=(),
            order=kept,
            reduction=None,
            value=tensor.at(indices),
            target=buffer,
            index=linear(indices, buffer.strides),
            origins=origins,
        )
        self.steps.append(normalised(nest))
        return whole(buffer)

    def in_memory(self, tensor: Tensor) -> Stored | None:
        """Memory that holds all elements of a tensor, which may be neither mutated nor returned. None if there is none, or if the
        elements have no strides in it."""
        if isinstance(tensor, Stored):
            return tensor
        axes = [new_axis(size) for size in tensor.shape]
        value = tensor.at(tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes))
        buffer = self.buffers.get(value.buffer) if isinstance(value, Load) and not value.indirect else None
        found = strides_of(value.index, axes) if isinstance(value, Load) and ZERO not in tensor.shape else None
        if buffer is None or found is None:
            return None
        strides, offset = found
        if offset == ZERO and tensor.shape == buffer.shape:
            stored = Stored(buffer, tensor.shape, buffer.strides, ZERO)
            if have_strides(stored, strides):
                return stored
        return Stored(buffer, tensor.shape, strides, offset, is_whole=False)

    def copy(self, tensor: Tensor, origins: tuple[str, ...] = ()) -> Stored:
        """A contiguous copy of the tensor, which `write` may change."""
        computed = Computed(tensor.shape, tensor.dtype, tensor.device, tensor.at, tensor.cost)
        stored = self.store(computed, origins=origins)
        self.copies.add(stored.buffer.name)
        return stored

    def write(
        self,
        how: Write,
        target: Stored,
        shape: Indices,
        place: Callable[[Indices], Place],
        value: Callable[[Indices], Scalar],
        origins: tuple[str, ...] = (),
    ) -> None:
        """Writes a value at an index for every point of `shape`, unless the index is out of bounds. The target is a result of
        `copy`, and nothing may load from it until all writes are done."""
        if ZERO in shape:
            return
        axes = [new_axis(size) for size in shape]
        point = tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)
        kept = tuple(axis for axis in axes if axis.size != ONE)
        indices, symbols = place(point)
        is_inside = [
            condition
            for symbol, checked in symbols
            for dim in [indices.index(symbol)]
            for condition in (
                Apply("ge", (checked, literal(0, torch.int64)), torch.bool),
                Apply("lt", (checked, FromIndex(target.shape[dim])), torch.bool),
            )
        ]
        condition = None if not is_inside else functools.reduce(lambda a, b: apply("and", a, b), is_inside)
        nest = Nest(
            axes=kept,
            reduced=(),
            order=kept,
            reduction=None,
            value=value(point),
            target=target.buffer,
            index=linear(indices, target.strides, target.offset),
            origins=origins,
            write=how,
            indirect=tuple(symbols),
            condition=condition,
        )
        self.steps.append(normalised(nest))

    def reduce(
        self,
        kind: ReductionKind,
        tensor: Tensor,
        dims: Sequence[int],
        dtype: torch.dtype,
        origins: tuple[str, ...] = (),
    ) -> Stored:
        """Reduces over `dims`, which stay with size 1. The values must have the accumulator's dtype; `dtype` is the result's."""
        split = None if kind not in SPLITTABLE or ZERO in tensor.shape else split_of(tensor.shape, dims, self.facts)
        if split is not None and (len(dims) == 1 or kind not in ("argmax", "argmin")):
            return self._reduce_in_parts(kind, tensor, dims, dtype, origins, split)
        return self._reduce_at_once(kind, tensor, dims, dtype, origins)

    def _reduce_at_once(
        self, kind: ReductionKind, tensor: Tensor, dims: Sequence[int], dtype: torch.dtype, origins: tuple[str, ...]
    ) -> Stored:
        axes = [new_axis(size) for size in tensor.shape]
        indices = tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)
        shape = [ONE if dim in dims else size for dim, size in enumerate(tensor.shape)]
        buffer = self.new_buffer(shape, dtype, tensor.device)
        if ZERO in shape:
            return self._empty(buffer, origins, "no elements")
        kept = tuple(axis for dim, axis in enumerate(axes) if dim not in dims and axis.size != ONE)
        reduced = tuple(axis for dim, axis in enumerate(axes) if dim in dims and axis.size != ONE)
        is_empty = any(axis.size == ZERO for axis in reduced)
        value: Scalar = literal(IDENTITIES[kind], dtype) if is_empty else tensor.at(indices)
        if is_empty:
            reduced = ()
        elif not reduced:  # each result has one value
            value = literal(0, dtype) if kind in ("argmax", "argmin") else cast(value, dtype)
            value = _from_zero(value) if kind == "sum" else value
        out = tuple(ZERO if dim in dims else index for dim, index in enumerate(indices))
        nest = Nest(
            axes=kept,
            reduced=reduced,
            order=tuple(axis for axis in axes if axis in kept or axis in reduced),
            reduction=Reduction(kind) if reduced else None,
            value=value,
            target=buffer,
            index=linear(out, buffer.strides),
            origins=origins,
        )
        self.steps.append(normalised(nest))
        return whole(buffer)

    def _reduce_in_parts(
        self,
        kind: ReductionKind,
        tensor: Tensor,
        dims: Sequence[int],
        dtype: torch.dtype,
        origins: tuple[str, ...],
        split: Split,
    ) -> Stored:
        """Reduces in parts, then reduces the parts' results."""
        at = split.dim
        of_values: ReductionKind = "max" if kind == "argmax" else "min" if kind == "argmin" else kind
        otherwise = literal(identity(of_values, tensor.dtype), tensor.dtype)
        assert isinstance(otherwise, Literal)
        parts = in_parts(tensor, split, otherwise)
        inner = [dim + 1 if dim >= at else dim for dim in dims if dim not in split.whole]
        values = self._reduce_at_once(of_values, parts, inner, tensor.dtype, origins)
        shape = tuple(ONE if dim in dims else size for dim, size in enumerate(tensor.shape))
        if kind == of_values:
            total = self._reduce_at_once(kind, values, [*split.whole, at], dtype, origins)
            strides = (*total.strides[:at], *total.strides[at + 1 :])
            return Stored(total.buffer, shape, strides, ZERO, is_whole=False)
        places = self._reduce_at_once(kind, parts, inner, dtype, origins)
        best = self._reduce_at_once(kind, values, [at], dtype, origins)
        symbol = sympy.Symbol(f"part_of_{places.buffer.name}", integer=True, nonnegative=True)

        def value(indices: Indices) -> Scalar:
            part = best.at((*indices[:at], ZERO, *indices[at:]))
            place = indirect_scalar(places.at((*indices[:at], symbol, *indices[at:])), [(symbol, part)])
            return place_in_whole(split, part, place)

        return self.store(Computed(shape, dtype, tensor.device, value), origins=origins)

    def scan(self, kind: ReductionKind, tensor: Tensor, dim: int, origins: tuple[str, ...] = ()) -> Tensor:
        """Cumulative sums or products along a dimension. Raises NotLowered if it is too long. Products are scanned in one block,
        because parts may overflow where the whole does not."""
        size = tensor.shape[dim]
        if not size.is_Integer or size > (LONGEST_SCAN * SCANNED_PART if kind == "cumsum" else LONGEST_SCAN):
            raise NotLowered(f"a scan along {size} values")
        if size > LONGEST_SCAN and ZERO not in tensor.shape:
            return self._scan_in_parts(tensor, dim, origins)
        if size == ONE or ZERO in tensor.shape:
            if kind != "cumsum":
                return self.store(tensor, origins=origins)
            begun = Computed(
                tensor.shape,
                tensor.dtype,
                tensor.device,
                lambda indices: _from_zero(tensor.at(indices)),
                tensor.cost + 1,
            )
            return self.store(begun, origins=origins)
        buffer = self.new_buffer(tensor.shape, tensor.dtype, tensor.device)
        axes = [new_axis(size) for size in tensor.shape]
        indices = tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)
        nest = Nest(
            axes=tuple(axis for at, axis in enumerate(axes) if at != dim and axis.size != ONE),
            reduced=(axes[dim],),
            order=tuple(axis for axis in axes if axis.size != ONE),
            reduction=Reduction(kind),
            value=tensor.at(indices),
            target=buffer,
            index=linear(indices, buffer.strides),
            origins=origins,
        )
        self.steps.append(normalised(nest))
        return whole(buffer)

    def _scan_in_parts(self, tensor: Tensor, dim: int, origins: tuple[str, ...]) -> Computed:
        """Scans parts, and the parts' totals, which are added at each load."""
        size, length = tensor.shape[dim], sympy.Integer(SCANNED_PART)
        parts = FloorDiv(size + length - 1, length)
        split = Split(dim, parts, length, is_exact=bool(size % length == 0))
        nothing = literal(0, tensor.dtype)
        assert isinstance(nothing, Literal)
        inner = self.scan("cumsum", in_parts(tensor, split, nothing), dim + 1, origins)
        assert isinstance(inner, Stored)
        steps = (*inner.strides[:dim], *inner.strides[dim + 1 :])
        of_parts = Stored(inner.buffer, tensor.shape, steps, inner.offset, is_whole=False)

        def total(indices: Indices) -> Scalar:
            return inner.at((*indices[: dim + 1], length - 1, *indices[dim + 1 :]))

        shape = (*tensor.shape[:dim], parts, *tensor.shape[dim + 1 :])
        totals = self.scan("cumsum", Computed(shape, tensor.dtype, tensor.device, total), dim, origins)

        def value(indices: Indices) -> Scalar:
            is_later = Apply("ge", (FromIndex(indices[dim]), FromIndex(length)), torch.bool)
            before = totals.at((*indices[:dim], FloorDiv(indices[dim], length) - 1, *indices[dim + 1 :]))
            own = of_parts.at(indices)
            return apply("where", is_later, apply("add", Guarded(is_later, before, nothing), own), own, dtype=own.dtype)

        return Computed(tensor.shape, tensor.dtype, tensor.device, value, 4)

    def _copied_by_a_call(self, tensor: Stored, buffer: Buffer, origins: tuple[str, ...]) -> Stored:
        """Copies a tensor that kernels cannot load into a buffer with strides of its own, by a call."""
        reason = f"a copy of {tensor.dtype}"
        target = self._empty(buffer, origins, reason)
        self.steps.append(
            Extern(
                target=torch.ops.aten.copy_.default,
                arguments=(target.as_operand(), tensor.as_operand()),
                keywords={},
                outputs=(Output(),),
                is_list=False,
                reads=frozenset([buffer.name, tensor.buffer.name]),
                writes=frozenset([buffer.name]),
                origin=", ".join(origins),
                reason=reason,
            )
        )
        return target

    def _empty(self, buffer: Buffer, origins: tuple[str, ...], reason: str) -> Stored:
        """A buffer that is allocated without a kernel."""
        sizes, steps = (
            tuple(SizeExpression(number) for number in numbers) for numbers in (buffer.shape, buffer.strides)
        )
        self.steps.append(
            Extern(
                target=torch.empty_strided,
                arguments=(sizes, steps),
                keywords={"dtype": buffer.dtype, "device": buffer.device},
                outputs=(Output(buffer=buffer),),
                is_list=False,
                reads=frozenset(),
                writes=frozenset(),
                origin=", ".join(origins),
                reason=reason,
            )
        )
        return whole(buffer)


def whole(buffer: Buffer) -> Stored:
    """The buffer's whole tensor."""
    return Stored(buffer, buffer.shape, buffer.strides, ZERO)


def have_strides(tensor: Stored, strides: Sequence[Any]) -> bool:
    """Whether the tensor has these strides, where sizes are not 1."""
    return len(strides) == len(tensor.strides) and all(
        size == ONE or is_provably_equal(mine, to_index(other))
        for size, mine, other in zip(tensor.shape, tensor.strides, strides, strict=True)
    )


def are_overlapping(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory."""
    end = 0  # end of the memory that the dimensions so far span
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False


def by_name(node: torch.fx.Node, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The lowered arguments of a call by their names in the schema, with defaults: overloads share names, not positions."""
    parameters: Any = node.target._schema.arguments  # type: ignore[union-attr]
    defaults = {each.name: each.default_value for each in parameters if each.has_default_value()}
    return {**defaults, **dict(zip((each.name for each in parameters), arguments, strict=False)), **keywords}


def fake_of(node: torch.fx.Node) -> torch.Tensor:
    """The node's fake tensor. Raises NotLowered for other values."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotLowered(f"the result is {type(value).__name__}")
    return value


def check_apart(node: torch.fx.Node) -> None:
    """Raises NotLowered if elements of the result may overlap: a write to one would change others."""
    if not is_apart(fake_of(node)):
        raise NotLowered("elements that may share memory")


def is_apart(fake: torch.Tensor) -> bool:
    """Whether elements provably do not overlap."""
    numbers = (*fake.shape, *fake.stride())
    if all(isinstance(number, int) for number in numbers):
        return not are_overlapping(fake.shape, fake.stride())
    return _are_side_by_side(fake)


def _are_side_by_side(fake: torch.Tensor) -> bool:
    """Whether symbolic sizes and strides are those of a contiguous tensor with permuted dimensions."""
    places = [(to_index(size), to_index(step)) for size, step in zip(fake.shape, fake.stride(), strict=True)]
    left = [(size, step) for size, step in places if size != ONE and step != ZERO]
    expected = ONE
    while left:
        found = next((place for place in left if is_provably_equal(place[1], expected)), None)
        if found is None:
            return False
        left.remove(found)
        expected = expected * found[0]
    return True


def shape_of(fake: torch.Tensor) -> Indices:
    """Sizes as expressions."""
    return tuple(to_index(size) for size in fake.shape)


def computed_like(
    node: torch.fx.Node, value: Callable[[Indices], Scalar], tensors: Sequence[Tensor], cost: int = 1
) -> Computed:
    """A computed tensor with the node's shape, dtype and device. Raises NotLowered for unsupported dtypes and devices."""
    fake = fake_of(node)
    if fake.dtype not in KERNEL_DTYPES:
        raise NotLowered(f"a result of {fake.dtype}")
    for tensor in tensors:
        if tensor.dtype not in KERNEL_DTYPES:
            raise NotLowered(f"an argument of {tensor.dtype}")
        if tensor.device != fake.device:
            raise NotLowered(f"an argument on {tensor.device}, and the result on {fake.device}")
    total = cost + sum(tensor.cost for tensor in tensors)
    return Computed(shape_of(fake), fake.dtype, fake.device, value, total)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic on a dtype."""
    return torch.float32 if dtype in HALF else dtype


def cast(value: Scalar, dtype: torch.dtype) -> Scalar:
    """The value in another dtype, as PyTorch converts. Constants are folded."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Literal) and _is_folded(value, dtype):
        number = value.value
        return literal(rounded_number(number, value.dtype) if isinstance(number, float) else number, dtype)
    if isinstance(value, FromIndex) and dtype in (torch.int32, torch.int64) and value.dtype == torch.int64:
        return FromIndex(value.index, dtype)
    return Apply("cast", (value,), dtype)


def _from_zero(value: Scalar) -> Scalar:
    """The sum of one value: 0 + -0.0 is 0.0."""
    return apply("add", value, literal(0, value.dtype)) if value.dtype.is_floating_point else value


def literal(number: Any, dtype: torch.dtype) -> Scalar:
    """A constant, rounded to the dtype; for a symbolic size, its value at run time."""
    if dtype not in KERNEL_DTYPES:
        raise NotLowered(f"a number of {dtype}")
    value = number
    if isinstance(number, sympy.Expr):
        if not number.is_integer:
            raise NotLowered(f"the number {number}")
        if not number.is_Integer:
            return cast(FromIndex(number), dtype)
        value = int(str(number))
    if dtype == torch.bool:
        return Literal(bool(value), dtype)
    if dtype.is_floating_point:
        return Literal(rounded_number(float(value), dtype) if dtype in HALF else float(value), dtype)
    return Literal(_wrapped(int(value), dtype), dtype)


def _is_folded(value: Literal, dtype: torch.dtype) -> bool:
    """Whether the conversion of a constant is the same on every machine. A float beyond the range of an integer dtype is not."""
    if not isinstance(value.value, float) or dtype.is_floating_point or dtype == torch.bool:
        return True
    info = torch.iinfo(dtype)
    return info.min <= value.value <= info.max


def _wrapped(value: int, dtype: torch.dtype) -> int:
    """The integer modulo the range of the dtype."""
    info = torch.iinfo(dtype)
    span = info.max - info.min + 1
    return (value - info.min) % span + info.min


def apply(function: str, *arguments: Scalar, dtype: torch.dtype | None = None) -> Apply:
    """A function whose result has the dtype of its first argument, unless another is given."""
    return Apply(function, arguments, arguments[0].dtype if dtype is None else dtype)


def broadcast_indices(indices: Indices, shape: Indices) -> Indices:
    """The index into a tensor of `shape` that is broadcast to all of the indices' dimensions."""
    own = indices[len(indices) - len(shape) :]
    return tuple(ZERO if size == ONE else index for index, size in zip(own, shape, strict=True))
