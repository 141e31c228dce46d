"""Lowerings of views and copies: changed indices in place of data movement.

A view of a tensor in memory stays in memory, with the strides and offset that the graph states. A view of a computed tensor is
computed at other indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO, contiguous_strides, is_provably_equal, linear, to_index
from refimpl.codegen.loop_ir import new_axis
from refimpl.codegen.lowering.state import (
    HALF,
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    check_apart,
    computed_like,
    fake_of,
    literal,
    opmath,
    shape_of,
)
from refimpl.codegen.scalars import Apply, FromIndex, Guarded, Literal, Scalar
from refimpl.codegen.strided import strides_of
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.symbolic.functions import FloorDiv, PythonMod

aten = torch.ops.aten

RULES = RuleTable()


def view(node: torch.fx.Node, x: Tensor, move: Callable[[Indices], Indices]) -> Tensor:
    """`x` at changed indices; `move` maps an index of the result to an index of `x`."""
    fake = fake_of(node)
    if isinstance(x, Stored) and x.dtype == fake.dtype:
        strided = _strided(x, move, shape_of(fake), tuple(to_index(step) for step in fake.stride()))
        if strided is not None:
            return strided
    return computed_like(node, lambda indices: x.at(move(indices)), [x], cost=0)


def _strided(
    x: Stored, move: Callable[[Indices], Indices], shape: Indices, said: Indices | None = None
) -> Stored | None:
    """A view in memory, if the offset is affine in the indices. Dimensions of size 1 get the strides `said`, because operators'
    kernels choose layouts by them."""
    axes = [new_axis(size) for size in shape]
    indices = tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)
    found = strides_of(linear(move(indices), x.strides, x.offset), axes)
    if found is None:
        return None
    steps, rest = found
    strides = tuple(
        step if size != ONE else ONE if said is None else said[dim]
        for dim, (size, step) in enumerate(zip(shape, steps, strict=True))
    )
    is_same = x.is_whole and rest == x.offset and shape == x.shape and strides == x.strides
    return x if is_same else Stored(x.buffer, shape, strides, rest, is_whole=False)


def _dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


@RULES.rule(aten.permute.default)
def _permute(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Sequence[int]) -> Tensor:
    order = [_dim(dim, len(x.shape)) for dim in dims]
    return view(node, x, lambda indices: tuple(indices[order.index(dim)] for dim in range(len(order))))


@RULES.rule(aten.t.default)
def _t(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Tensor:
    return view(node, x, lambda indices: tuple(reversed(indices)))


@RULES.rule(aten.transpose.int)
def _transpose(state: LoweringState, node: torch.fx.Node, x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(len(x.shape)))
    if order:
        a, b = _dim(a, len(order)), _dim(b, len(order))
        order[a], order[b] = order[b], order[a]
    return view(node, x, lambda indices: tuple(indices[dim] for dim in order))


@RULES.rule(aten.expand.default)
def _expand(state: LoweringState, node: torch.fx.Node, x: Tensor, size: Any, *, implicit: bool = False) -> Tensor:
    return view(node, x, lambda indices: broadcast_indices(indices, x.shape))


@RULES.rule(aten.unsqueeze.default)
def _unsqueeze(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int) -> Tensor:
    at = _dim(dim, len(x.shape) + 1)
    return view(node, x, lambda indices: indices[:at] + indices[at + 1 :])


@RULES.rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any = None) -> Tensor:
    """The graph tells which dimensions are removed: those of the given ones that have size 1."""
    rank = len(x.shape)
    asked = range(rank) if dims is None else ([dims] if isinstance(dims, int) else dims)
    gone = {_dim(dim, max(rank, 1)) for dim in asked}
    gone = {dim for dim in gone if dim < rank and x.shape[dim] == ONE}
    if rank - len(gone) != len(shape_of(fake_of(node))):
        raise NotLowered("squeeze of a size that may be 1")

    def move(indices: Indices) -> Indices:
        rest = list(indices)
        return tuple(ZERO if dim in gone else rest.pop(0) for dim in range(rank))

    return view(node, x, move)


@RULES.rule(aten.select.int)
def _select(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Any) -> Tensor:
    at = _dim(dim, len(x.shape))
    place = to_index(index)
    if place.is_negative:
        place = place + x.shape[at]
    if not place.is_nonnegative:
        raise NotLowered("select at an index of unknown sign")
    return view(node, x, lambda indices: (*indices[:at], place, *indices[at:]))


@RULES.rule(aten.slice.Tensor)
def _slice(
    state: LoweringState,
    node: torch.fx.Node,
    x: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Tensor:
    at = _dim(dim, len(x.shape))
    size = x.shape[at]
    begin = _slice_begin(0 if start is None else start, size)
    stride = to_index(step)
    return view(node, x, lambda indices: (*indices[:at], begin + stride * indices[at], *indices[at + 1 :]))


def _slice_begin(start: Any, size: sympy.Expr) -> sympy.Expr:
    begin = to_index(start)
    if begin.is_negative:
        begin = begin + size
        if begin.is_negative:
            return ZERO
    if not begin.is_nonnegative:
        raise NotLowered("slice from an index of unknown sign")
    past = (begin - size).expand()
    if past.is_nonnegative:
        return size
    if begin != ZERO and not past.is_nonpositive:
        raise NotLowered("slice from an index that may be past the end")
    return begin


@RULES.rule(aten.diagonal.default)
def _diagonal(
    state: LoweringState, node: torch.fx.Node, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    rank = len(x.shape)
    first, second = _dim(dim1, rank), _dim(dim2, rank)
    is_empty = shape_of(fake_of(node))[-1] == ZERO
    offset = 0 if is_empty else offset  # an empty diagonal starts where its tensor does
    down, right = max(-offset, 0), max(offset, 0)

    def move(indices: Indices) -> Indices:
        rest = list(indices[:-1])
        step = indices[-1]
        places = {first: step + down, second: step + right}
        return tuple(places[dim] if dim in places else rest.pop(0) for dim in range(rank))

    return view(node, x, move)


@RULES.rule(aten.unfold.default)
def _unfold(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, size: Any, step: Any) -> Tensor:
    """Windows along a dimension, each in a new last dimension. It has a lowering because a decomposition would need the storage
    offset."""
    if not x.shape:
        return view(node, x, lambda indices: ())
    at, stride = _dim(dim, len(x.shape)), to_index(step)
    return view(node, x, lambda indices: (*indices[:at], stride * indices[at] + indices[-1], *indices[at + 1 : -1]))


@RULES.rule(aten.flip.default)
def _flip(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Sequence[int]) -> Tensor:
    rank = len(x.shape)
    flipped = {_dim(dim, rank) for dim in dims}

    def move(indices: Indices) -> Indices:
        return tuple(x.shape[dim] - 1 - index if dim in flipped else index for dim, index in enumerate(indices))

    return computed_like(node, lambda indices: x.at(move(indices)), [x], cost=0)


@RULES.rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _view(state: LoweringState, node: torch.fx.Node, x: Tensor, size: Any) -> Tensor:
    shape = shape_of(fake_of(node))
    if isinstance(x, Stored) and ZERO in shape:  # there is no element, but the storage offset may be asked for
        return Stored(x.buffer, shape, tuple(map(to_index, fake_of(node).stride())), x.offset, is_whole=False)
    return view(node, x, reshaping(x.shape, shape))


def reshaping(old: Indices, new: Indices) -> Callable[[Indices], Indices]:
    """Maps an index of the new shape to one of the old shape. Equal dimensions are kept; the others are grouped into runs with
    equally many elements."""
    groups = _groups(old, new)

    def move(indices: Indices) -> Indices:
        moved: list[sympy.Expr] = []
        for old_dims, new_dims in groups:
            sizes = [old[dim] for dim in old_dims]
            if len(old_dims) == 1 and len(new_dims) == 1:
                moved.append(indices[new_dims[0]])
                continue
            place = linear([indices[dim] for dim in new_dims], contiguous_strides([new[dim] for dim in new_dims]))
            moved.extend(digits(place, sizes))
        return tuple(moved)

    return move


def digits(place: sympy.Expr, sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The index per dimension of the n-th element in row-major order."""
    found: list[sympy.Expr] = []
    if ZERO in sizes:  # no element, and nothing to divide by
        return [ZERO] * len(sizes)
    steps = contiguous_strides(sizes)
    largest = next((at for at, size in enumerate(sizes) if size != ONE), 0)
    for at, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        if size == ONE:
            found.append(ZERO)
            continue
        digit = place if step == ONE else FloorDiv(place, step)
        found.append(digit if at == largest else PythonMod(digit, size))
    return found


def _groups(old: Indices, new: Indices) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of both shapes with equally many elements."""
    groups: list[tuple[list[int], list[int]]] = []
    at_old = at_new = 0
    while at_old < len(old) or at_new < len(new):
        old_dims, new_dims = [at_old], [at_new]
        if at_old >= len(old) or at_new >= len(new):  # only sizes of 1 are left on one side
            groups.append((list(range(at_old, len(old))), list(range(at_new, len(new)))))
            break
        old_size, new_size = old[at_old], new[at_new]
        at_old, at_new = at_old + 1, at_new + 1
        while not is_provably_equal(old_size, new_size):
            takes_old = _is_smaller(old_size, new_size) if at_old < len(old) else False
            if not takes_old and at_new >= len(new):
                takes_old = True
            if takes_old and at_old < len(old):
                old_size = old_size * old[at_old]
                old_dims.append(at_old)
                at_old += 1
            elif at_new < len(new):
                new_size = new_size * new[at_new]
                new_dims.append(at_new)
                at_new += 1
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        groups.append((old_dims, new_dims))
    return groups


def _is_smaller(a: sympy.Expr, b: sympy.Expr) -> bool:
    if a.is_Integer and b.is_Integer:
        return bool(a < b)
    quotient = b / a
    return bool(quotient.is_integer) or not bool((a / b).is_integer)


@RULES.rule(aten.cat.default)
def _cat(state: LoweringState, node: torch.fx.Node, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    fake = fake_of(node)
    if any(tensor.dtype != fake.dtype for tensor in tensors):
        raise NotLowered("cat of several dtypes")
    rank = fake.dim()
    parts = [tensor for tensor in tensors if len(tensor.shape) == rank]  # cat ignores empty one-dimensional tensors
    if any(tensor.shape != (ZERO,) for tensor in tensors if len(tensor.shape) != rank):
        raise NotLowered("cat of tensors of several ranks")
    at = _dim(dim, rank)
    ends: list[sympy.Expr] = []
    for part in parts:
        ends.append((ends[-1] if ends else ZERO) + part.shape[at])

    def value(indices: Indices) -> Scalar:
        place = indices[at]
        result: Scalar | None = None
        for part, end in reversed(list(zip(parts, ends, strict=True))):
            begin = end - part.shape[at]
            if part.shape[at] == ZERO:
                continue
            inner = (*indices[:at], place - begin, *indices[at + 1 :])
            conditions = [] if begin == ZERO else [compared("ge", place, begin)]
            if result is not None:
                conditions.append(compared("lt", place, end))
            loaded = guarded(conditions, part.at(inner), literal(0, fake.dtype))
            is_here = compared("lt", place, end)
            result = loaded if result is None else apply("where", is_here, loaded, result, dtype=fake.dtype)
        return literal(0, fake.dtype) if result is None else result

    return computed_like(node, value, parts, cost=2 * len(parts))


def compared(function: str, index: sympy.Expr, bound: Any) -> Scalar:
    """A comparison of index expressions."""
    return Apply(function, (FromIndex(index), FromIndex(to_index(bound))), torch.bool)


def guarded(conditions: Sequence[Scalar], value: Scalar, otherwise: Scalar) -> Scalar:
    """The value if all conditions are true, else `otherwise`."""
    if not conditions:
        return value
    condition = conditions[0]
    for other in conditions[1:]:
        condition = apply("and", condition, other)
    assert isinstance(otherwise, Literal)
    return Guarded(condition, value, otherwise)


@RULES.rule(aten.constant_pad_nd.default)
def _constant_pad(state: LoweringState, node: torch.fx.Node, x: Tensor, pad: Sequence[Any], fill: Any = 0) -> Computed:
    rank = len(x.shape)
    begins: list[Any] = [ZERO] * rank
    is_padded = [False] * rank
    for pair in range(len(pad) // 2):
        dim = rank - 1 - pair
        begins[dim] = to_index(pad[2 * pair])
        is_padded[dim] = to_index(pad[2 * pair]) != ZERO or to_index(pad[2 * pair + 1]) != ZERO

    otherwise = literal(fill, x.dtype)
    if not isinstance(otherwise, Literal):
        raise NotLowered("a fill value that is a size")

    def value(indices: Indices) -> Scalar:
        inner = tuple(index - begin for index, begin in zip(indices, begins, strict=True))
        conditions = []
        for dim, index in enumerate(inner):
            if is_padded[dim]:
                conditions += [compared("ge", index, 0), compared("lt", index, x.shape[dim])]
        return guarded(conditions, x.at(inner), otherwise)

    return computed_like(node, value, [x], cost=2)


def _check_source(node: torch.fx.Node, view_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Raises NotLowered if the source does not have the view's shape, which eager refuses and fake kernels accept. Symbolic sizes
    are not compared."""
    whole, source = (argument.meta["val"] for argument in node.args[:2] if isinstance(argument, torch.fx.Node))
    numbers = (*whole.shape, *source.shape, *node.args[2:], *node.kwargs.values())
    if any(not isinstance(number, (int, type(None))) for number in numbers):
        return
    try:
        shape = view_of(torch.empty(whole.shape, device="meta")).shape
    except (RuntimeError, IndexError) as error:
        raise NotLowered(f"an error of the operator: {error}") from error
    if shape != source.shape:
        raise NotLowered(f"a source of another shape than {tuple(shape)}")


@RULES.rule(aten.slice_scatter.default)
def _slice_scatter(
    state: LoweringState, node: torch.fx.Node, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: Any = 1,
) -> Computed:  # fmt: skip
    if source.dtype != x.dtype:
        raise NotLowered("slice_scatter of two dtypes")
    check_apart(node)
    if not to_index(step).is_positive:
        raise NotLowered(f"slice_scatter by steps of {step}")
    at = _dim(dim, len(x.shape))
    _check_source(node, lambda whole: torch.ops.aten.slice.Tensor(whole, dim, start, end, step))
    begin, stride, count = _slice_begin(0 if start is None else start, x.shape[at]), to_index(step), source.shape[at]

    def value(indices: Indices) -> Scalar:
        place = indices[at] - begin
        inner = (*indices[:at], place if stride == ONE else FloorDiv(place, stride), *indices[at + 1 :])
        conditions = [compared("ge", place, 0), compared("lt", place, count * stride)]
        if stride != ONE:
            conditions.append(compared("eq", PythonMod(place, stride), 0))
        taken = guarded(conditions, source.at(inner), literal(0, x.dtype))
        chosen = conditions[0]
        for condition in conditions[1:]:
            chosen = apply("and", chosen, condition)
        return apply("where", chosen, taken, x.at(indices), dtype=x.dtype)

    return computed_like(node, value, [x, source], cost=4)


@RULES.rule(aten.select_scatter.default)
def _select_scatter(
    state: LoweringState, node: torch.fx.Node, x: Tensor, source: Tensor, dim: int, index: Any
) -> Computed:
    if source.dtype != x.dtype:
        raise NotLowered("select_scatter of two dtypes")
    check_apart(node)
    _check_source(node, lambda whole: torch.ops.aten.select.int(whole, dim, index))
    at = _dim(dim, len(x.shape))
    place = to_index(index)
    if place.is_negative:
        place = place + x.shape[at]
    if not place.is_nonnegative:
        raise NotLowered("select_scatter at an index of unknown sign")

    def value(indices: Indices) -> Scalar:
        chosen = compared("eq", indices[at], place)
        taken = guarded([chosen], source.at((*indices[:at], *indices[at + 1 :])), literal(0, x.dtype))
        return apply("where", chosen, taken, x.at(indices), dtype=x.dtype)

    return computed_like(node, value, [x, source], cost=2)


@RULES.rule(aten.diagonal_scatter.default)
def _diagonal_scatter(
    state: LoweringState, node: torch.fx.Node, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Computed:
    if source.dtype != x.dtype:
        raise NotLowered("diagonal_scatter of two dtypes")
    check_apart(node)
    rank = len(x.shape)
    first, second = _dim(dim1, rank), _dim(dim2, rank)
    down, right = max(-offset, 0), max(offset, 0)
    length = sympy.Min(x.shape[first] - down, x.shape[second] - right)
    rests = (*(size for dim, size in enumerate(x.shape) if dim not in (first, second)), length)
    if len(source.shape) != len(rests) or not all(map(is_provably_equal, source.shape, rests)):
        raise NotLowered("diagonal_scatter of another shape")  # eager raises

    def value(indices: Indices) -> Scalar:
        place, across = indices[first] - down, indices[second] - right
        rest = tuple(index for dim, index in enumerate(indices) if dim not in (first, second))
        chosen = apply("and", compared("eq", place, across), compared("ge", place, 0))
        taken = guarded([chosen], source.at((*rest, place)), literal(0, x.dtype))
        return apply("where", chosen, taken, x.at(indices), dtype=x.dtype)

    return computed_like(node, value, [x, source], cost=3)


_LONG_RANGE = 2**13  # most steps, if their number is symbolic


@RULES.rule(aten.arange.start_step, torch.ops.prims.iota.default)
def _arange(state: LoweringState, node: torch.fx.Node, *arguments: Any, **keywords: Any) -> Computed:
    fake = fake_of(node)
    if node.target is torch.ops.prims.iota.default:
        start, step = keywords["start"], keywords["step"]
    else:
        start, step = arguments[0], arguments[2] if len(arguments) > 2 else 1
    if not all(isinstance(number, (int, float, sympy.Expr)) for number in (start, step)):
        raise NotLowered("arange of numbers known at run time")
    if fake.dtype == torch.bool:
        raise NotLowered("arange of truth values")
    if fake.dtype.is_floating_point:
        if fake.device.type == "cpu" and not _holds_all(start, step, fake):
            raise NotLowered("steps that eager rounds by vectors")
        return computed_like(node, _stepped(start, step, fake.dtype, fake.device), [], cost=2)
    begin, stride = (
        to_index(int(start) if isinstance(start, float) else start),
        to_index(int(step) if isinstance(step, float) else step),
    )
    return computed_like(node, lambda indices: _counted(begin + stride * indices[0], fake.dtype), [], cost=1)


def _holds_all(start: Any, step: Any, fake: torch.Tensor) -> bool:
    """Whether the dtype represents every number of a range exactly, so that rounding does not depend on vector boundaries.
    Symbolic numbers are taken for small integers, except in half dtypes."""
    known = [x for x in (start, step) if isinstance(x, (int, float))]
    if not all(math.isfinite(x) for x in known):
        return True
    parts = max((float(x).as_integer_ratio()[1] for x in known), default=1)
    count = fake.shape[0]
    is_known = isinstance(count, int) and len(known) == 2
    if not is_known and fake.dtype in HALF:
        return False
    largest = max(abs(start), abs(start + step * count)) if is_known else max(map(abs, known), default=0) * _LONG_RANGE
    return largest * parts <= 2 / torch.finfo(fake.dtype).eps


def _stepped(start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> Callable[[Indices], Scalar]:
    """Computes steps as eager does: in float64 on the CPU, in the dtype's arithmetic on a GPU."""
    compute = torch.float64 if device.type == "cpu" else opmath(dtype)

    def value(indices: Indices) -> Scalar:
        place = cast(FromIndex(indices[0]), compute)
        return cast(apply("add", literal(start, compute), apply("mul", literal(step, compute), place)), dtype)

    return value


def _counted(index: sympy.Expr, dtype: torch.dtype) -> Scalar:
    value = FromIndex(index.expand())
    return value if dtype == torch.int64 else Apply("cast", (value,), dtype)


@RULES.rule(aten.repeat.default)
def _repeat(state: LoweringState, node: torch.fx.Node, x: Tensor, repeats: Sequence[Any]) -> Tensor:
    rank = len(x.shape)

    def move(indices: Indices) -> Indices:
        own = indices[len(indices) - rank :]
        return tuple(ZERO if size == ONE else PythonMod(index, size) for index, size in zip(own, x.shape, strict=True))

    if ZERO in x.shape:
        return computed_like(node, lambda indices: literal(0, x.dtype), [x], cost=0)
    return computed_like(node, lambda indices: x.at(move(indices)), [x], cost=1)


@RULES.rule(aten.as_strided.default)
def _as_strided(
    state: LoweringState, node: torch.fx.Node, x: Tensor, size: Any, stride: Any, storage_offset: Any = None
) -> Tensor:
    if not isinstance(x, Stored) or not x.is_whole or x.offset != ZERO or storage_offset is None:
        raise NotLowered("as_strided of what has no known place in memory")
    raise NotLowered("as_strided")


@RULES.rule(aten.split_with_sizes.default)
def _split_with_sizes(
    state: LoweringState, node: torch.fx.Node, x: Tensor, sizes: Sequence[Any], dim: int = 0
) -> list[Tensor]:
    at = _dim(dim, len(x.shape))
    begins: list[Any] = [ZERO]
    for size in sizes:
        begins.append(begins[-1] + to_index(size))
    parts: list[Tensor] = []
    for position, begin in enumerate(begins[:-1]):
        shape = (*x.shape[:at], to_index(sizes[position]), *x.shape[at + 1 :])

        def move(indices: Indices, begin: sympy.Expr = begin) -> Indices:
            return (*indices[:at], begin + indices[at], *indices[at + 1 :])

        strided = _strided(x, move, shape) if isinstance(x, Stored) else None
        if strided is not None:
            parts.append(strided)
            continue

        def value(indices: Indices, move: Callable[[Indices], Indices] = move) -> Scalar:
            return x.at(move(indices))

        parts.append(Computed(shape, x.dtype, x.device, value, x.cost))
    return parts
