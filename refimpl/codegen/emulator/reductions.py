"""Reductions, scans and sorting.

Counterpart: triton/language/standard.py; triton/language/core.py reduce, associative_scan
Differs: a combine function sees halves of a block at once: neighbours are combined in pairs, then pairs of pairs, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from refimpl.codegen.emulator.arithmetic import (
    add,
    equal,
    greater,
    less,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mul,
    sub,
    truediv,
    where,
    xor_,
)
from refimpl.codegen.emulator.arithmetic import or_ as bit_or
from refimpl.codegen.emulator.types import Type, bf16, fp16, fp32, int32, uint32, uint64
from refimpl.codegen.emulator.values import Rejected, Value, axis_of, cast_value, common_shape, method, to_value

Combine = Callable[..., Any]


def _inputs(input: Any) -> tuple[Value, ...]:
    values = tuple(input) if isinstance(input, (tuple, list)) else (input,)
    values = tuple(to_value(value) for value in values)
    shape = common_shape(tuple(v.data.shape) for v in values)
    return tuple(Value(v.data.expand(shape), v.dtype) for v in values)


def _taken(values: Sequence[Value], axis: int, where_: slice) -> list[Value]:
    index = (slice(None),) * axis + (where_,)
    return [Value(v.data[index], v.dtype) for v in values]


def _combined(combine: Combine, left: Sequence[Value], right: Sequence[Value], what: str) -> tuple[Value, ...]:
    result = combine(*left, *right)
    results = tuple(to_value(r) for r in (result if isinstance(result, (tuple, list)) else (result,)))
    if len(results) != len(left):
        raise Rejected(f"{what}: the combine function gives {len(results)} values for {len(left)}")
    for before, after in zip(left, results, strict=True):
        if before.dtype is not after.dtype:
            raise Rejected(f"{what}: the combine function makes {after.dtype} of {before.dtype}")
    return results


def _function(combine_fn: Any) -> Combine:
    return getattr(combine_fn, "emulated", combine_fn)


@method("reduce")
def reduce(input: Any, axis: int | None, combine_fn: Any, keep_dims: bool = False) -> Any:
    """Along an axis, or along all, with a combine function over one value or a tuple of values."""
    values, combine = _inputs(input), _function(combine_fn)
    rank = len(values[0].shape)
    if rank == 0:
        raise Rejected("a reduction of a scalar")
    place = 1 if axis is None else axis_of(axis, rank, "a reduction")
    if axis is None:
        values = tuple(Value(v.data.reshape(v.data.shape[0], -1), v.dtype) for v in values)
    while (size := values[0].data.shape[place]) > 1:
        if size & 1:
            raise Rejected(f"a reduction of {size} elements, which is no power of two")
        left, right = _taken(values, place, slice(0, None, 2)), _taken(values, place, slice(1, None, 2))
        values = _combined(combine, left, right, "a reduction")
    results = tuple(Value(_closed(v.data, place, axis, rank, keep_dims), v.dtype) for v in values)
    return results if isinstance(input, (tuple, list)) else results[0]


def _closed(data: Tensor, place: int, axis: int | None, rank: int, keep_dims: bool) -> Tensor:
    data = data.squeeze(place)
    if not keep_dims:
        return data
    return data.reshape(data.shape[0], *[1] * rank) if axis is None else data.unsqueeze(place)


def _along(x: Value, axis: int | None, what: str) -> tuple[Tensor, int, int]:
    """Data, the axis of it, and the rank of the block."""
    rank = len(x.shape)
    if rank == 0:
        raise Rejected(f"{what} of a scalar")
    if axis is None:
        return x.data.reshape(x.data.shape[0], -1), 1, rank
    return x.data, axis_of(axis, rank, what), rank


def _summed_as(type_: Type, dtype: Any) -> Type:
    if isinstance(dtype, Type):
        return dtype
    if type_.is_int() and type_.bits < 32:
        return int32 if type_.signed else uint32
    return type_


@method("sum")
def sum_(input: Any, axis: int | None = None, keep_dims: bool = False, dtype: Any = None) -> Value:
    """Half types are rounded after each addition, as on the device."""
    x = to_value(input)
    x = cast_value(x, _summed_as(_plain(x), dtype))
    if x.dtype in (fp16, bf16):
        return reduce(x, axis, add, keep_dims)
    data, place, rank = _along(x, axis, "sum")
    total = data.sum(place, dtype=data.dtype)
    if x.dtype is uint32:
        total = total & 0xFFFFFFFF
    return Value(_closed(total.unsqueeze(place), place, axis, rank, keep_dims), x.dtype)


def _plain(x: Value) -> Type:
    if not isinstance(x.dtype, Type):
        raise Rejected(f"a reduction of {x.type}")
    return x.dtype


def _widened(x: Value) -> Value:
    """The type in which max and min reduce: at least 32 bits wide."""
    type_ = _plain(x)
    if type_.bits >= 32:
        return x
    return cast_value(x, fp32 if type_.is_floating() else int32)


def _extremum(
    input: Any, axis: int | None, return_indices: bool, tie_break_left: bool, keep_dims: bool, *, is_maximum: bool
) -> Any:
    x = to_value(input)
    if return_indices:
        x = cast_value(x, fp32) if x.dtype is bf16 else x
        return _with_indices(x, axis, tie_break_left, keep_dims, is_maximum=is_maximum)
    x = _widened(x)
    if x.dtype is uint64:
        return reduce(x, axis, maximum if is_maximum else minimum, keep_dims)
    data, place, rank = _along(x, axis, "max" if is_maximum else "min")
    best = data.amax(place) if is_maximum else data.amin(place)
    if x.dtype.is_floating() and bool(best.isnan().any()):  # torch propagates NaN, the device gives the other operand
        worst = float("-inf") if is_maximum else float("inf")
        is_nan = data.isnan()
        rest = torch.where(is_nan, worst, data)
        rest = rest.amax(place) if is_maximum else rest.amin(place)
        best = torch.where(is_nan.all(place), best, rest)
    return Value(_closed(best.unsqueeze(place), place, axis, rank, keep_dims), x.dtype)


def _with_indices(
    x: Value, axis: int | None, tie_break_left: bool, keep_dims: bool, *, is_maximum: bool
) -> tuple[Value, Value]:
    data, place, rank = _along(x, axis, "argmax" if is_maximum else "argmin")
    size = data.shape[place]
    index = torch.arange(size, dtype=torch.int32).reshape(*[1] * place, size, *[1] * (data.dim() - place - 1))
    if (_plain(x).is_floating() and bool(data.isnan().any())) or x.dtype is uint64 or not tie_break_left:
        # NaN compares false, so which one is kept follows from the order of combination.
        values = (Value(data, x.dtype), Value(index.expand(data.shape), int32))
        combine = _index_combine(is_maximum=is_maximum, tie_break_left=tie_break_left)
        best, best_index = (v.data.unsqueeze(place) for v in reduce(values, place - 1, combine))
    else:
        best = data.amax(place, keepdim=True) if is_maximum else data.amin(place, keepdim=True)
        best_index = torch.where(data == best, index, size).amin(place, keepdim=True)
    return (
        Value(_closed(best, place, axis, rank, keep_dims), x.dtype),
        Value(_closed(best_index, place, axis, rank, keep_dims), int32),
    )


def _index_combine(*, is_maximum: bool, tie_break_left: bool) -> Combine:
    def combine(a: Value, i: Value, b: Value, j: Value) -> tuple[Value, Value]:
        is_better = greater(a, b) if is_maximum else less(a, b)
        if tie_break_left:
            is_better = logical_or(is_better, logical_and(equal(a, b), less(i, j)))
        return where(is_better, a, b), where(is_better, i, j)

    return combine


@method("max")
def max_(
    input: Any, axis: int | None = None, return_indices: bool = False, return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:  # fmt: skip
    return _extremum(input, axis, return_indices, return_indices_tie_break_left, keep_dims, is_maximum=True)


@method("min")
def min_(
    input: Any, axis: int | None = None, return_indices: bool = False, return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:  # fmt: skip
    return _extremum(input, axis, return_indices, return_indices_tie_break_left, keep_dims, is_maximum=False)


@method()
def argmax(input: Any, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False) -> Value:
    return _extremum(input, axis, True, tie_break_left, keep_dims, is_maximum=True)[1]


@method()
def argmin(input: Any, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False) -> Value:
    return _extremum(input, axis, True, tie_break_left, keep_dims, is_maximum=False)[1]


@method()
def xor_sum(input: Any, axis: int | None = None, keep_dims: bool = False) -> Value:
    if not _plain(to_value(input)).is_int():
        raise Rejected(f"xor_sum of {to_value(input).type}; expected integers")
    return reduce(input, axis, xor_, keep_dims)


@method()
def reduce_or(input: Any, axis: int | None = None, keep_dims: bool = False) -> Value:
    if not _plain(to_value(input)).is_int():
        raise Rejected(f"reduce_or of {to_value(input).type}; expected integers")
    return reduce(input, axis, bit_or, keep_dims)


# ------------------------------------------------------------------------------------------------------------------- scans


@method()
def associative_scan(input: Any, axis: int, combine_fn: Any, reverse: bool = False) -> Any:
    """Inclusive scan along an axis: each round combines every element with what is `distance` before it."""
    values, combine = _inputs(input), _function(combine_fn)
    place = axis_of(axis, len(values[0].shape), "a scan")
    if reverse:
        values = tuple(Value(v.data.flip(place), v.dtype) for v in values)
    size, distance = values[0].data.shape[place], 1
    while distance < size:
        left, right = _taken(values, place, slice(0, size - distance)), _taken(values, place, slice(distance, None))
        done = _taken(values, place, slice(0, distance))
        new = _combined(combine, left, right, "a scan")
        values = tuple(
            Value(torch.cat([d.data, n.data.expand(before.data.shape)], dim=place), d.dtype)
            for d, n, before in zip(done, new, left, strict=True)
        )
        distance *= 2
    if reverse:
        values = tuple(Value(v.data.flip(place), v.dtype) for v in values)
    return values if isinstance(input, (tuple, list)) else values[0]


def _cumulated(x: Value, axis: int, reverse: bool, combine: Combine, whole: Callable[[Tensor, int], Tensor]) -> Value:
    if x.dtype is fp16 or not isinstance(x.dtype, Type) or x.dtype.name in ("uint8", "uint32"):
        return associative_scan(x, axis, combine, reverse)
    place = axis_of(axis, len(x.shape), "a scan")
    data = x.data.flip(place) if reverse else x.data
    data = whole(data, place).to(x.dtype.carrier)
    return Value(data.flip(place) if reverse else data, x.dtype)


@method()
def cumsum(input: Any, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Value:
    x = to_value(input)
    x = cast_value(x, fp32) if x.dtype is bf16 else x
    return _cumulated(cast_value(x, _summed_as(_plain(x), dtype)), axis, reverse, add, torch.cumsum)


@method()
def cumprod(input: Any, axis: int = 0, reverse: bool = False) -> Value:
    x = to_value(input)
    x = cast_value(x, fp32) if x.dtype is bf16 else x
    return _cumulated(x, axis, reverse, mul, torch.cumprod)


# ----------------------------------------------------------------------------------------------------------------- sorting


@method("sort")
def sort(x: Value, dim: int | None = None, descending: bool = False) -> Value:
    """Sort along the last axis. A device leaves the place of NaN open; here it is last, or first if descending."""
    if dim not in (None, -1, len(x.shape) - 1):
        raise Rejected(f"sort along axis {dim}; only the last one can be sorted")
    if x.dtype is uint64:
        flipped = x.data ^ -(1 << 63)
        return Value(torch.sort(flipped, dim=-1, descending=bool(descending)).values ^ -(1 << 63), x.dtype)
    return Value(torch.sort(x.data, dim=-1, descending=bool(descending)).values, x.dtype)


def topk(x: Value, k: int, dim: int | None = None) -> Value:
    ordered = sort(x, dim, descending=True)
    return Value(ordered.data[..., :k], x.dtype)


@method()
def softmax(x: Value, dim: int | None = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Value:
    axis = 0 if dim is None else dim
    shifted = sub(x, max_(x, axis, keep_dims=True))
    numerator = Value(torch.exp(shifted.data), shifted.dtype)
    return truediv(numerator, sum_(numerator, axis, keep_dims=True))
