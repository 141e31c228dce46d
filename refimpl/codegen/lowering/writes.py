"""Lowerings of scatter and index_put: writes at indices loaded from memory.

Accumulating writes are atomics on a copy. Replacing writes are not stored by their points: if several points write to one
element, the last wins, as in eager on the CPU. The winner of each element is found first, as a maximum over point numbers; the
result is then computed at each load. An index out of bounds is a failed assertion, and writes nothing.

Counterpart: torch/_inductor/lowering.py index_put_, scatter_fallback, scatter_reduce_
Differs: the last of several values for one element wins; maxima and minima are integer atomics, in which NaN wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from typing import Literal as Either

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO, contiguous_strides, is_provably_equal, linear, product
from refimpl.codegen.loop_ir import Write, identity
from refimpl.codegen.lowering.indexing import AdvancedIndex, indirect, new_place, read_at
from refimpl.codegen.lowering.state import (
    KERNEL_DTYPES,
    LoweringState,
    NotLowered,
    Place,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    computed_like,
    literal,
    opmath,
)
from refimpl.codegen.lowering.views import digits
from refimpl.codegen.scalars import Apply, FromIndex, Guarded, Literal, Load, Scalar, walk
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()

_MAX_INT32 = 2**31 - 1


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of atomics: half dtypes are rounded once, and narrow integers wrap at the end."""
    return torch.int32 if dtype in (torch.bool, torch.uint8, torch.int8, torch.int16) else opmath(dtype)


def _check_dtypes(x: Tensor, values: Tensor | None) -> None:
    if x.dtype not in KERNEL_DTYPES:
        raise NotLowered(f"writes into {x.dtype}")
    if values is not None and values.dtype != x.dtype:
        raise NotLowered(f"{values.dtype} written into {x.dtype}")
    if values is not None and values.device != x.device:
        raise NotLowered(f"a tensor on {values.device} written into one on {x.device}")


def _check_order(state: LoweringState, dtype: torch.dtype) -> None:
    if dtype.is_floating_point and (state.options.deterministic or torch.are_deterministic_algorithms_enabled()):
        raise NotLowered(f"{dtype} added up atomically, where results must be deterministic")


def _from(node: torch.fx.Node, source: Tensor, dtype: torch.dtype) -> Tensor:
    """The accumulated values in the node's dtype."""
    if source.dtype == dtype:
        return source
    return computed_like(node, lambda at: cast(source.at(at), dtype), [source], cost=1)


def _copied(state: LoweringState, node: torch.fx.Node, x: Tensor, dtype: torch.dtype) -> Stored:
    """A tensor that may be changed: a copy, or the tensor itself if it is a copy that nothing else reads."""
    source = node.args[0]
    is_last = isinstance(source, torch.fx.Node) and len(source.users) == 1
    if is_last and isinstance(x, Stored) and x.is_whole and x.dtype == dtype and x.buffer.name in state.copies:
        return x

    def value(at: Indices) -> Scalar:
        return cast(x.at(at), dtype)

    return state.copy(Computed(x.shape, dtype, x.device, value, x.cost), (node.name,))


def _filled(state: LoweringState, node: torch.fx.Node, x: Tensor, shape: Indices, fill: int, dtype: Any) -> Stored:
    return state.copy(Computed(shape, dtype, x.device, lambda at: literal(fill, dtype)), (node.name,))


# ---- indices of several dimensions


@RULES.rule(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    state: LoweringState, node: torch.fx.Node, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False,
) -> Tensor:  # fmt: skip
    _check_dtypes(x, values)
    given = [index for index in indices if index is not None]
    if given and all(index.dtype == torch.bool for index in given):
        return _masked_put(node, x, indices, values, accumulate=accumulate)
    index = AdvancedIndex.of(x.shape, indices)
    _check_broadcast(values.shape, index.points)

    def value(at: Indices) -> Scalar:
        return values.at(broadcast_indices(at, values.shape))

    if accumulate:
        return _accumulated(state, node, "add", x, index.points, index.place, value)
    if all(size == ONE for size in values.shape):
        return _replaced_by_one(state, node, x, index.points, index.place, value)
    dims = list(index.by_dim)
    sizes = tuple(x.shape[dim] for dim in dims)
    winners = _winners(state, node, x, sizes, index.shape, lambda at: _only(index, at, dims), linear_of(index.shape))
    source = _readable(state, node, values)

    def written(at: Indices) -> Scalar:
        symbol, last = _winner(winners, tuple(at[dim] for dim in dims))
        rest = [place for dim, place in enumerate(at) if dim not in dims]
        point = (*rest[: index.begin], *digits(symbol, index.shape), *rest[index.begin :])
        return _replaced(x, at, source, broadcast_indices(point, source.shape), symbol, last)

    return computed_like(node, written, [x, winners, source], cost=4)


def _check_broadcast(shape: Indices, to: Indices) -> None:
    """Raises NotLowered for values that do not broadcast to the indexed shape, which fake kernels accept."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    are_other = (size != ONE and size.is_Integer and place.is_Integer and size != place for size, place in pairs)
    if len(shape) > len(to) or any(are_other):
        raise NotLowered("values of another shape than their places")


def _only(index: AdvancedIndex, at: Indices, dims: Sequence[int]) -> Place:
    """The index of a point of the indices, in the indexed dimensions only."""
    rest = len(index.x_shape) - len(dims)
    zeros = (ZERO,) * rest
    indices, symbols = index.place((*zeros[: index.begin], *at, *zeros[index.begin :]))
    return tuple(indices[dim] for dim in dims), symbols


def linear_of(shape: Indices) -> Callable[[Indices], sympy.Expr]:
    """The row-major number of a point."""
    steps = contiguous_strides(shape)
    return lambda at: linear(at, steps)


def _masked_put(
    node: torch.fx.Node, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, *, accumulate: bool
) -> Tensor:
    """Writes one value where a mask is true."""
    if len(indices) != 1 or any(size != ONE for size in values.shape):
        raise NotLowered("several values where a mask is true")
    mask = indices[0]
    assert mask is not None
    compute = opmath(x.dtype)

    def value(at: Indices) -> Scalar:
        old, new = x.at(at), values.at((ZERO,) * len(values.shape))
        if accumulate and x.dtype == torch.bool:
            new = apply("or", old, new)
        elif accumulate:
            new = cast(apply("add", cast(old, compute), cast(new, compute)), x.dtype)
        return apply("where", mask.at(at[: len(mask.shape)]), new, old, dtype=x.dtype)

    return computed_like(node, value, [x, mask, values])


# ---- one dimension


def _dim(x: Tensor, dim: int) -> int:
    if not x.shape:
        raise NotLowered("writes into a scalar")
    return dim + len(x.shape) if dim < 0 else dim


def _check_rows(x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raises NotLowered for sources of another shape, which eager refuses."""
    count = product(index.shape)
    rows = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    if len(source.shape) != len(rows) or not all(map(is_provably_equal, source.shape, rows)):
        raise NotLowered("rows of another shape")


def _along(
    x: Tensor,
    dim: int,
    index: Tensor,
    *,
    is_row: bool,
    check: Either["checked_index", "checked_place"] = "checked_place",
) -> Callable[[Indices], Place]:
    """A function that loads a point's index along one dimension from a tensor of the points' shape, or (`is_row`) of that
    dimension."""

    def place(at: Indices) -> Place:
        own = (at[dim : dim + 1] if index.shape else ()) if is_row else at
        symbol = indirect(index.at(own), x.shape[dim], wraps=False, check=check)
        return (*at[:dim], symbol[0], *at[dim + 1 :]), [symbol]

    return place


@RULES.rule(aten.scatter_add.default)
def _scatter_add(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _check_dtypes(x, src)
    place = _along(x, _dim(x, dim), index, is_row=False)
    return _accumulated(state, node, "add", x, index.shape, place, src.at)


@RULES.rule(aten.index_add.default)
def _index_add(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1
) -> Tensor:
    _check_dtypes(x, source)
    at_dim = _dim(x, dim)
    compute = opmath(x.dtype)

    def value(at: Indices) -> Scalar:
        if alpha == 1:
            return source.at(at)
        return cast(apply("mul", cast(source.at(at), compute), literal(alpha, compute)), x.dtype)

    if x.dtype == torch.bool:
        raise NotLowered("truth values times a number")
    _check_rows(x, at_dim, index, source)
    # eager raises another error where it uses scatter
    is_scattered = len(x.shape) > 1 and alpha == 1 and index.dtype == torch.int64 and at_dim in (0, len(x.shape) - 1)
    check = "checked_place" if is_scattered else "checked_index"
    place = _along(x, at_dim, index, is_row=True, check=check)
    return _accumulated(state, node, "add", x, source.shape, place, value)


@RULES.rule(aten.index_copy.default)
def _index_copy(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> Tensor:
    _check_dtypes(x, source)
    at_dim = _dim(x, dim)
    _check_rows(x, at_dim, index, source)
    rows = _readable(state, node, source)
    limit = x.shape[at_dim]

    def place(at: Indices) -> Place:
        symbol = indirect(index.at(at if index.shape else ()), limit, wraps=False)
        return (symbol[0],), [symbol]

    winners = _winners(state, node, x, (limit,), source.shape[at_dim : at_dim + 1], place, lambda at: at[0])

    def written(at: Indices) -> Scalar:
        symbol, last = _winner(winners, (at[at_dim],))
        return _replaced(x, at, rows, (*at[:at_dim], symbol, *at[at_dim + 1 :]), symbol, last)

    return computed_like(node, written, [x, winners, rows], cost=4)


@RULES.rule(aten.scatter.value)
def _scatter_value(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    _check_dtypes(x, None)
    number = literal(value, x.dtype)
    place = _along(x, _dim(x, dim), index, is_row=False)
    return _replaced_by_one(state, node, x, index.shape, place, lambda at: number)


@RULES.rule(aten.scatter.src)
def _scatter(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    _check_dtypes(x, src)
    at_dim = _dim(x, dim)
    place = _along(x, at_dim, index, is_row=False)
    winners = _winners(state, node, x, x.shape, index.shape, place, lambda at: at[at_dim])
    source = _readable(state, node, src)

    def written(at: Indices) -> Scalar:
        symbol, last = _winner(winners, at)
        return _replaced(x, at, source, (*at[:at_dim], symbol, *at[at_dim + 1 :]), symbol, last)

    return computed_like(node, written, [x, winners, source], cost=4)


@RULES.rule(aten.scatter_reduce.two)
def _scatter_reduce(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    _check_dtypes(x, src)
    place = _along(x, _dim(x, dim), index, is_row=False)
    if reduce in ("amax", "amin"):
        return _extremes(state, node, "max" if reduce == "amax" else "min", x, index.shape, place, src, include_self)
    if reduce not in ("sum", "mean") or x.dtype == torch.bool:
        raise NotLowered(f"{reduce} of {x.dtype} at indices")
    dtype = accumulator(x.dtype)
    _check_order(state, dtype)
    target = _copied(state, node, x, dtype)
    origins = (node.name,)
    if not include_self:
        state.write("part", target, index.shape, place, lambda at: literal(0, dtype), origins)
    state.write("add", target, index.shape, place, lambda at: cast(src.at(at), dtype), origins)
    if reduce == "sum":
        return _from(node, target, x.dtype)
    counts = _filled(state, node, x, x.shape, 1 if include_self else 0, torch.int32)
    state.write("add", counts, index.shape, place, lambda at: literal(1, torch.int32), origins)

    def mean(at: Indices) -> Scalar:
        count = apply("maximum", counts.at(at), literal(1, torch.int32))
        if dtype.is_floating_point:
            return cast(apply("div", target.at(at), cast(count, dtype)), x.dtype)
        total = cast(cast(target.at(at), x.dtype), dtype)  # narrow integers wrap before the division
        return cast(floor_divided(total, cast(count, dtype)), x.dtype)

    return computed_like(node, mean, [target, counts], cost=4)


def _extremes(
    state: LoweringState, node: torch.fx.Node, how: Either["max", "min"], x: Tensor, points: Indices,
    place: Callable[[Indices], Place], src: Tensor, include_self: bool,
) -> Tensor:  # fmt: skip
    """Maxima or minima. Floats become integers in the same order."""
    accumulated = accumulator(x.dtype)
    is_float = accumulated.is_floating_point
    dtype = {torch.float32: torch.int32, torch.float64: torch.int64}.get(accumulated, accumulated)

    def encoded(value: Scalar) -> Scalar:
        value = cast(value, accumulated)
        return _ordered(value, dtype, how) if is_float else value

    target = state.copy(Computed(x.shape, dtype, x.device, lambda at: encoded(x.at(at)), x.cost + 4), (node.name,))
    if not include_self:
        least = literal(identity(how, dtype), dtype)
        state.write("part", target, points, place, lambda at: least, (node.name,))
    state.write(how, target, points, place, lambda at: encoded(src.at(at)), (node.name,))

    def decoded(at: Indices) -> Scalar:
        if not is_float:
            return cast(target.at(at), x.dtype)
        bits = _flipped(target.at(at))
        return cast(Apply("bitcast", (bits,), accumulated), x.dtype)

    return computed_like(node, decoded, [target], cost=4)


def _ordered(value: Scalar, dtype: torch.dtype, how: Either["max", "min"]) -> Scalar:
    """An integer that is greater for a greater float; for NaN the winning one."""
    info = torch.iinfo(dtype)
    nan = literal(info.max if how == "max" else info.min, dtype)
    is_nan = Apply("ne", (value, value), torch.bool)
    return apply("where", is_nan, nan, _flipped(Apply("bitcast", (value,), dtype)), dtype=dtype)


def _flipped(bits: Scalar) -> Scalar:
    """Inverts the lower bits of negative numbers, which orders them by magnitude. Applied twice, it changes nothing."""
    dtype = bits.dtype
    is_negative = Apply("lt", (bits, literal(0, dtype)), torch.bool)
    return apply("where", is_negative, apply("xor", bits, literal(torch.iinfo(dtype).max, dtype)), bits, dtype=dtype)


def floor_divided(a: Scalar, b: Scalar) -> Scalar:
    """Floor division of integers by a positive one."""
    zero, one = literal(0, a.dtype), literal(1, a.dtype)
    quotient = apply("truncdiv", a, b)
    is_less = apply("and", Apply("lt", (a, zero), torch.bool), Apply("ne", (apply("mod", a, b), zero), torch.bool))
    return apply("where", is_less, apply("sub", quotient, one), quotient, dtype=a.dtype)


# ---- kinds of writes


def _accumulated(
    state: LoweringState, node: torch.fx.Node, how: Write, x: Tensor, points: Indices,
    place: Callable[[Indices], Place], value: Callable[[Indices], Scalar],
) -> Tensor:  # fmt: skip
    dtype = accumulator(x.dtype)
    _check_order(state, dtype)
    target = _copied(state, node, x, dtype)
    state.write(how, target, points, place, lambda at: cast(value(at), dtype), (node.name,))
    return _from(node, target, x.dtype)


def _replaced_by_one(
    state: LoweringState, node: torch.fx.Node, x: Tensor, points: Indices, place: Callable[[Indices], Place],
    value: Callable[[Indices], Scalar],
) -> Tensor:  # fmt: skip
    """Writes a value where points that share an element agree on it."""
    target = _copied(state, node, x, x.dtype)
    state.write("part", target, points, place, value, (node.name,))
    return target


def _winners(
    state: LoweringState, node: torch.fx.Node, x: Tensor, shape: Indices, points: Indices,
    place: Callable[[Indices], Place], number: Callable[[Indices], sympy.Expr],
) -> Stored:  # fmt: skip
    """For each element the greatest number of a point that writes to it; -1 if none does."""
    count = product(points)
    dtype = torch.int32 if count.is_Integer and count <= _MAX_INT32 else torch.int64
    target = _filled(state, node, x, shape, -1, dtype)
    state.write("max", target, points, place, lambda at: cast(FromIndex(number(at)), dtype), (node.name,))
    return target


def _winner(winners: Stored, at: Indices) -> tuple[sympy.Symbol, Scalar]:
    """A symbol for the number of the last point that writes to an element, and its value."""
    return new_place(), cast(winners.at(at), torch.int64)


def _readable(state: LoweringState, node: torch.fx.Node, values: Tensor) -> Tensor:
    """Values that are loaded at loaded indices: stored in memory, unless they are one constant."""
    if isinstance(values, Computed):
        point = tuple(new_place() for _ in values.shape)
        if not any(isinstance(part, (Load, FromIndex)) for part in walk(values.at(point))):
            return values
    return state.store(values, origins=(node.name,))


def _replaced(x: Tensor, at: Indices, source: Tensor, point: Indices, symbol: sympy.Symbol, last: Scalar) -> Scalar:
    """The source's element at a point that contains the symbol, if any point writes there; else the old value."""
    is_written = Apply("ge", (last, literal(0, torch.int64)), torch.bool)
    if isinstance(source, Computed):
        return apply("where", is_written, source.at(point), x.at(at), dtype=x.dtype)
    otherwise = literal(0, x.dtype)
    assert isinstance(otherwise, Literal)
    new = Guarded(is_written, read_at(source, point, [(symbol, last)]), otherwise)
    return apply("where", is_written, new, x.at(at), dtype=x.dtype)
