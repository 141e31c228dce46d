"""Making and shaping blocks: program_id, arange, full, reshape, trans, cat, join, flip, gather, dot and their like.

Counterpart: triton/language/core.py, triton/language/semantic.py
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.codegen.emulator.arithmetic import add, minimum
from refimpl.codegen.emulator.memory import Context
from refimpl.codegen.emulator.types import PointerType, Type, bf16, fp16, fp32, fp64, int8, int32
from refimpl.codegen.emulator.values import (
    LARGEST_BLOCK,
    Rejected,
    Value,
    align,
    axis_of,
    cast_value,
    common_shape,
    constant,
    method,
    to_value,
)


def program_id(axis: int) -> Value:
    x, y, _ = Context.running.grid
    numbers = Context.running.programs
    if axis not in (0, 1, 2):
        raise Rejected(f"program_id axis {axis}; expected 0, 1 or 2")
    ids = (
        (numbers % x, numbers // x % y, numbers // (x * y))[axis]
        if axis or y > 1 or Context.running.grid[2] > 1
        else numbers
    )
    if Context.running.grid[axis] == 1:
        ids = ids[:1]
    return Value(ids.to(torch.int32), int32)


def num_programs(axis: int) -> Value:
    if axis not in (0, 1, 2):
        raise Rejected(f"num_programs axis {axis}; expected 0, 1 or 2")
    return constant(Context.running.grid[axis], int32)


# ------------------------------------------------------------------------------------------------------------------ shapes


def _block_shape(shape: Any) -> tuple[int, ...]:
    """Sizes as a tuple of ints. Rejected unless each is a power of two and the block is not too large."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    numel = 1
    for size in sizes:
        if isinstance(size, Value) or not isinstance(size, int):
            raise Rejected(f"a block shape with {size!r}; expected constants")
        if size <= 0 or size & (size - 1):
            raise Rejected(f"a block of shape {list(sizes)}; each size must be a power of two")
        numel *= size
    if numel > LARGEST_BLOCK:
        raise Rejected(f"a block of {numel} elements; Triton allows {LARGEST_BLOCK}")
    Context.running.largest = max(Context.running.largest, numel)
    return sizes


def _sizes(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def arange(start: int, end: int) -> Value:
    if isinstance(start, Value) or isinstance(end, Value):
        raise Rejected("arange with bounds that are no constants")
    if end <= start:
        raise Rejected(f"arange({start}, {end}); the end must be greater than the start")
    if (end - start) & (end - start - 1):
        raise Rejected(f"arange({start}, {end}); its size, {end - start}, must be a power of two")
    _block_shape((end - start,))
    return Value(torch.arange(start, end, dtype=torch.int32).unsqueeze(0), int32)


def full(shape: Any, value: Any, dtype: Any) -> Value:
    sizes = _block_shape(shape)
    if not isinstance(dtype, Type):
        raise Rejected(f"full of {dtype!r}, which is no scalar type")
    if isinstance(value, Value):
        data = cast_value(value, dtype).data
        return Value(data.reshape(data.shape[0], *[1] * len(sizes)).expand(data.shape[0], *sizes), dtype)
    scalar = constant(value, dtype).data
    return Value(scalar.reshape(1, *[1] * len(sizes)).expand(1, *sizes), dtype)


def zeros(shape: Any, dtype: Any) -> Value:
    return full(shape, 0, dtype)


def zeros_like(input: Value) -> Value:
    return full(input.shape, 0, input.dtype)


@method()
def broadcast_to(input: Any, *shape: Any) -> Value:
    sizes = _block_shape(_sizes(shape))
    if not isinstance(input, Value):
        raise Rejected(f"{input!r} broadcast to {list(sizes)}; a number is made a block by full")
    value = input
    data = value.data
    if data.dim() == 1:
        data = data.reshape(-1, *[1] * len(sizes))
    if data.dim() != len(sizes) + 1 or any(n not in (1, m) for n, m in zip(data.shape[1:], sizes, strict=True)):
        raise Rejected(f"a block of shape {list(value.shape)} broadcast to {list(sizes)}")
    return Value(data.expand(data.shape[0], *sizes), value.dtype, value.buffer)


def broadcast(input: Any, other: Any) -> tuple[Value, Value]:
    a, b = to_value(input), to_value(other)
    x, y = align((a.data, b.data))
    shape = common_shape(((1, *x.shape[1:]), (1, *y.shape[1:])))[1:]
    return (
        Value(x.expand(x.shape[0], *shape), a.dtype, a.buffer),
        Value(y.expand(y.shape[0], *shape), b.dtype, b.buffer),
    )


@method()
def expand_dims(input: Any, axis: Any) -> Value:
    value = to_value(input)
    axes = [axis] if isinstance(axis, int) else list(axis)
    rank = len(value.shape) + len(axes)
    data = value.data
    for place in sorted(axis_of(a, rank, "expand_dims") for a in axes):
        data = data.unsqueeze(place)
    return Value(data, value.dtype, value.buffer)


@method("reshape", "view")
def reshape(input: Any, *shape: Any, can_reorder: bool = False) -> Value:
    value, sizes = to_value(input), _block_shape(_sizes(shape))
    data = value.data
    if data[0].numel() != torch.Size(sizes).numel():
        raise Rejected(f"a block of shape {list(value.shape)} reshaped to {list(sizes)}")
    return Value(data.reshape(data.shape[0], *sizes), value.dtype, value.buffer)


@method()
def ravel(x: Value, can_reorder: bool = False) -> Value:
    return reshape(x, x.numel)


def squeeze(x: Value, dim: int) -> Value:
    return Value(x.data.squeeze(axis_of(dim, len(x.shape), "squeeze")), x.dtype, x.buffer)


def unsqueeze(x: Value, dim: int) -> Value:
    return expand_dims(x, dim)


@method("permute")
def permute(input: Value, *dims: Any) -> Value:
    order = _sizes(dims)
    if sorted(order) != list(range(len(input.shape))):
        raise Rejected(f"permute by {list(order)} of a block with {len(input.shape)} axes")
    return Value(input.data.permute(0, *(d + 1 for d in order)), input.dtype, input.buffer)


@method("trans")
def trans(input: Value, *dims: Any) -> Value:
    order = _sizes(dims) or (1, 0)
    return permute(input, *order)


setattr(Value, "T", property(trans))


def cat(input: Value, other: Value, can_reorder: bool = False, dim: int = 0) -> Value:
    if input.dtype is not other.dtype or input.shape != other.shape:
        raise Rejected(f"cat of {input.type} and {other.type}; expected two of one type")
    if len(input.shape) != 1 and dim == 0 and can_reorder:
        raise Rejected("cat with can_reorder of blocks with more than one axis")
    programs = max(input.data.shape[0], other.data.shape[0])
    data = [v.data.expand(programs, *v.shape) for v in (input, other)]
    _block_shape((2 * input.shape[0], *input.shape[1:]))
    return Value(torch.cat(data, dim=axis_of(dim, len(input.shape), "cat")), input.dtype, input.buffer)


def join(a: Any, b: Any) -> Value:
    a, b = broadcast(a, b)
    programs = max(a.data.shape[0], b.data.shape[0])
    if a.dtype is not b.dtype:
        raise Rejected(f"join of {a.type} and {b.type}; expected one type")
    return Value(torch.stack([v.data.expand(programs, *v.shape) for v in (a, b)], dim=-1), a.dtype, a.buffer)


@method()
def split(a: Value) -> tuple[Value, Value]:
    if not a.shape or a.shape[-1] != 2:
        raise Rejected(f"split of a block of shape {list(a.shape)}; expected 2 as the last size")
    return Value(a.data[..., 0], a.dtype, a.buffer), Value(a.data[..., 1], a.dtype, a.buffer)


def interleave(a: Any, b: Any) -> Value:
    joined = join(a, b)
    return joined if len(joined.shape) == 1 else reshape(joined, *joined.shape[:-2], 2 * joined.shape[-2])


@method()
def flip(x: Value, dim: int | None = None) -> Value:
    axis = axis_of(-1 if dim is None else dim, len(x.shape), "flip")
    return Value(x.data.flip(axis), x.dtype, x.buffer)


@method()
def gather(src: Value, index: Value, axis: int) -> Value:
    if isinstance(index.dtype, PointerType) or not index.dtype.is_int():
        raise Rejected(f"gather by {index.type}; expected integers")
    place = axis_of(axis, len(src.shape), "gather")
    programs = max(src.data.shape[0], index.data.shape[0])
    data, where = src.data.expand(programs, *src.shape), index.data.expand(programs, *index.shape).to(torch.int64)
    size = data.shape[place]
    if where.numel() and not (int(where.min()) >= 0 and int(where.max()) < size):
        raise Rejected(f"gather with an index outside of 0 to {size - 1}")
    return Value(torch.gather(data, place, where), src.dtype)


@method()
def histogram(input: Value, num_bins: int, mask: Value | None = None) -> Value:
    if len(input.shape) != 1 or isinstance(input.dtype, PointerType) or not input.dtype.is_int():
        raise Rejected(f"histogram of {input.type}; expected a block of integers with one axis")
    _block_shape((num_bins,))
    data = input.data.to(torch.int64)
    counted = torch.ones_like(data, dtype=torch.bool) if mask is None else mask.data.expand(data.shape)
    counted = counted & (data >= 0) & (data < num_bins)
    result = torch.zeros(data.shape[0], num_bins, dtype=torch.int32)
    return Value(result.scatter_add_(1, torch.where(counted, data, 0), counted.to(torch.int32)), int32)


# --------------------------------------------------------------------------------------------------------------------- dot

_DOT_TYPES = (int8, fp16, bf16, fp32, fp64)
_PRECISIONS = (None, "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def dot(
    input: Value,
    other: Value,
    acc: Value | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: Any = fp32,
) -> Value:
    """Matrix product, accumulated in fp32 (fp64 for fp64, int32 for int8). tf32, the default for fp32, truncates the operands."""
    a, b = input, other
    if a.dtype is not b.dtype or a.dtype not in _DOT_TYPES:
        raise Rejected(f"dot of {a.type} and {b.type}; expected one of {', '.join(map(str, _DOT_TYPES))} for both")
    if len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-2]:
        raise Rejected(f"dot of shapes {list(a.shape)} and {list(b.shape)}")
    least = 32 if a.dtype is int8 else 16
    if a.shape[-1] < least:
        raise Rejected(f"dot over {a.shape[-1]} elements; the compiler takes {least} and more of {a.dtype}")
    if input_precision not in _PRECISIONS:
        raise Rejected(f"input_precision={input_precision!r}; known: {', '.join(map(str, _PRECISIONS))}")
    if input_precision is not None and allow_tf32 is not None:
        raise Rejected("both input_precision and allow_tf32")
    precision = input_precision or ("ieee" if allow_tf32 is False else "tf32")
    result = _result_type(a.dtype, out_dtype)
    wide = {int8: torch.int32, fp64: torch.float64}.get(a.dtype, torch.float32)
    x, y = a.data.to(wide), b.data.to(wide)
    if a.dtype is fp32 and precision == "tf32":
        x, y = _as_tf32(x), _as_tf32(y)
    product = Value(torch.matmul(x, y), {torch.int32: int32, torch.float64: fp64}.get(wide, fp32))
    Context.running.largest = max(Context.running.largest, product.numel)
    if acc is None:
        return cast_value(product, result)
    if acc.dtype is not result:
        raise Rejected(f"dot with an accumulator of {acc.dtype}; expected {result}")
    return cast_value(add(cast_value(acc, product.dtype), product), result)


def _result_type(type_: Any, out_dtype: Any) -> Type:
    if type_ is int8:
        return int32
    if out_dtype is bf16:
        raise Rejected("dot with out_dtype bf16; use fp32 or fp16 and convert")
    if type_ is fp64:
        return fp64
    return out_dtype if type_ is fp16 and out_dtype is fp16 else fp32


def _as_tf32(data: torch.Tensor) -> torch.Tensor:
    """Keep the ten bits of mantissa that tensor cores read. The PTX of a dot truncates; it does not round."""
    return (data.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def swizzle2d(i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple[Any, Any]:
    """Row-major positions of a size_i x size_j grid as positions that go down columns within groups of size_g rows."""
    position = i * size_j + j
    per_group = size_g * size_j
    first_row = position // per_group * size_g
    rows_left = size_i - first_row
    rows = minimum(rows_left, size_g)
    inside = position % per_group
    return first_row + inside % rows, inside // rows
