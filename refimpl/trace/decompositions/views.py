"""Decompositions of views, of their `*_copy`, `*_scatter` and `*_backward` ops, and of ops that only move elements.

Counterpart: torch/_refs/__init__.py and torch/_decomp/decompositions.py, view ops, *_copy, *_scatter, *_backward of views
Differs: the backward of a view is its scatter op into zeros; one rule makes every `*_copy` op its view op and a contiguous copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.layouts import in_format, laid_out_as, row_major, suggested_format, with_strides_of
from refimpl.trace.decompositions.promotion import cast, common_dtype
from refimpl.trace.decompositions.registry import aten, register, rule

Tensor = torch.Tensor


def wrapped(dim: int, ndim: int) -> int:
    """The dimension as a non-negative number."""
    return dim + ndim if dim < 0 else dim


# --------------------------------------------------------------------------------------------------------------- views


@rule(aten.detach.default)
def detach(x: Tensor) -> Tensor:
    return aten.alias.default(x)


@rule(aten.t.default)
def t(x: Tensor) -> Tensor:
    if x.ndim > 2:
        return NotImplemented  # eager raises
    return torch.permute(x, (1, 0)) if x.ndim == 2 else aten.alias.default(x)


@rule(aten.transpose.int)
def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    if x.ndim == 0:
        return aten.alias.default(x)
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return torch.permute(x, order)


@rule(aten.squeeze.default)
def squeeze(x: Tensor) -> Tensor:
    return aten.squeeze.dims(x, [d for d in range(x.ndim) if x.shape[d] == 1])


@rule(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(x: Tensor, split_size: int, dim: int = 0) -> Any:
    return aten.split_with_sizes.default(x, _parts(x, split_size, dim), dim)


@rule(aten.unsafe_split_with_sizes.default)
def unsafe_split_with_sizes(x: Tensor, split_sizes: Sequence[Any], dim: int = 0) -> Any:
    return aten.split_with_sizes.default(x, split_sizes, dim)


def _parts(x: Tensor, split_size: Any, dim: int) -> list[Any]:
    length = x.shape[dim]
    if split_size == 0:
        return [length]
    whole = (
        max((length + split_size - 1) // split_size, 1) - 1
    )  # the number of parts depends on symbolic sizes, no size does
    return [*[split_size] * whole, length - split_size * whole]


@rule(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0) -> Any:
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


@rule(aten.unfold.default)
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if x.ndim == 0:
        return aten.as_strided.default(x, [size], [1]) if size <= 1 else NotImplemented
    dim = wrapped(dimension, x.ndim)
    if size > x.shape[dim] or step <= 0 or size < 0:
        return NotImplemented  # eager raises
    shape, stride = list(x.shape), list(x.stride())
    shape[dim] = (shape[dim] - size) // step + 1
    window = stride[dim]
    stride[dim] = window * step
    return aten.as_strided.default(x, [*shape, size], [*stride, window], x.storage_offset())


@rule(aten._unsafe_view.default)
def unsafe_view(x: Tensor, size: Sequence[Any]) -> Tensor:
    return aten.view.default(x, size)


@rule(aten._reshape_alias.default)
def reshape_alias(x: Tensor, size: Sequence[Any], stride: Sequence[Any]) -> Tensor:
    return aten.as_strided.default(x, size, stride, x.storage_offset())


@rule(aten.view.dtype)
def view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    return aten.alias.default(x) if x.dtype is dtype else NotImplemented


@rule(aten.lift.default)
def lift(x: Tensor) -> Tensor:
    return aten.alias.default(x)


# --------------------------------------------------------------------------------------------------------- copies of views


def _register_copy(overload: OpOverload, view: OpOverload) -> None:
    def copied(*args: Any, **kwargs: Any) -> Any:
        result = view(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return aten.clone.default(result, memory_format=torch.contiguous_format)
        return [aten.clone.default(part, memory_format=torch.contiguous_format) for part in result]

    copied.__name__ = copied.__qualname__ = f"{view} and a copy of it"
    register(overload, copied)


for _copy, _view in (
    (aten.alias_copy.default, aten.alias.default),
    (aten.as_strided_copy.default, aten.as_strided.default),
    (aten.detach_copy.default, aten.detach.default),
    (aten.diagonal_copy.default, aten.diagonal.default),
    (aten.expand_copy.default, aten.expand.default),
    (aten.narrow_copy.default, aten.narrow.default),
    (aten.permute_copy.default, aten.permute.default),
    (aten.select_copy.int, aten.select.int),
    (aten.slice_copy.Tensor, aten.slice.Tensor),
    (aten.split_copy.Tensor, aten.split.Tensor),
    (aten.split_with_sizes_copy.default, aten.split_with_sizes.default),
    (aten.squeeze_copy.default, aten.squeeze.default),
    (aten.squeeze_copy.dim, aten.squeeze.dim),
    (aten.squeeze_copy.dims, aten.squeeze.dims),
    (aten.t_copy.default, aten.t.default),
    (aten.transpose_copy.int, aten.transpose.int),
    (aten.unbind_copy.int, aten.unbind.int),
    (aten.unfold_copy.default, aten.unfold.default),
    (aten.unsqueeze_copy.default, aten.unsqueeze.default),
    (aten.view_as_complex_copy.default, aten.view_as_complex.default),
    (aten.view_as_real_copy.default, aten.view_as_real.default),
    (aten.view_copy.dtype, aten.view.dtype),
):
    _register_copy(_copy, _view)


# ------------------------------------------------------------------------------------------------ scatter and backward


@rule(aten.select_scatter.default)
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    dim = wrapped(dim, x.ndim)
    if src.shape != torch.Size([*x.shape[:dim], *x.shape[dim + 1 :]]):
        return NotImplemented  # eager raises
    position = wrapped(index, x.shape[dim])
    return aten.slice_scatter.default(x, src.unsqueeze(dim), dim, position, position + 1)


@rule(aten.diagonal_scatter.default)
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    if src.shape != torch.diagonal(x, offset, dim1, dim2).shape:
        return NotImplemented  # eager raises
    # (rows, columns, the rest): index_put with two indices needs their dimensions first
    dims = (dim1, dim2)
    matrix = x.movedim(dims, (0, 1))
    steps = torch.arange(src.shape[-1], device=x.device)
    row, column = (steps, steps + offset) if offset >= 0 else (steps - offset, steps)
    out = aten.index_put.default(matrix, [row, column], cast(src, x.dtype).movedim(-1, 0)).movedim((0, 1), dims)
    return with_strides_of(x, out)


def _zeros_as(grad: Tensor, sizes: Sequence[Any]) -> Tensor:
    return torch.zeros(sizes, dtype=grad.dtype, device=grad.device)


def _without(sizes: Sequence[Any], *dims: int) -> tuple[Any, ...]:
    left_out = [wrapped(dim, len(sizes)) for dim in dims]
    return tuple(size for dim, size in enumerate(sizes) if dim not in left_out)


# The ops broadcast a gradient of another shape than the view's; the rules leave that to them.


@rule(aten.select_backward.default)
def select_backward(grad: Tensor, input_sizes: Sequence[Any], dim: int, index: int) -> Tensor:
    if tuple(grad.shape) != _without(input_sizes, dim):
        return NotImplemented
    return aten.select_scatter.default(_zeros_as(grad, input_sizes), grad, dim, index)


@rule(aten.slice_backward.default)
def slice_backward(grad: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any) -> Tensor:
    if grad.ndim == 0 or grad.ndim != len(input_sizes) or _without(grad.shape, dim) != _without(input_sizes, dim):
        return NotImplemented
    numbers = (input_sizes[dim], start, end, step)
    if grad.shape[dim] == 1 and all(type(number) is int for number in numbers) and step > 0:
        if len(range(*slice(start, end, step).indices(input_sizes[dim]))) != 1:
            return NotImplemented
    return aten.slice_scatter.default(_zeros_as(grad, input_sizes), grad, dim, start, end, step)


@rule(aten.diagonal_backward.default)
def diagonal_backward(grad: Tensor, input_sizes: Sequence[Any], offset: int, dim1: int, dim2: int) -> Tensor:
    rest = _without(input_sizes, dim1, dim2)
    if grad.ndim == 0 or grad.ndim > len(rest) + 1:
        return NotImplemented
    if grad.shape[-1] == 1 or tuple(grad.shape[:-1]) != rest:  # torch 2.11's fake kernel does not broadcast it
        rows, columns = input_sizes[dim1], input_sizes[dim2]
        grad = grad.expand(*rest, min(rows + min(offset, 0), columns - max(offset, 0)))
    return aten.diagonal_scatter.default(_zeros_as(grad, input_sizes), grad, offset, dim1, dim2)


@rule(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, input_sizes: Sequence[Any], dim: int, size: int, step: int) -> Tensor:
    """An element's gradient is the sum over the windows that it is in."""
    if len(input_sizes) == 0:
        return aten.clone.default(torch.squeeze(grad, 0))
    dim = wrapped(dim, len(input_sizes))
    positions = torch.arange(input_sizes[dim], device=grad.device).unfold(0, size, step).reshape(-1)
    windows = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return aten.index_add.default(_zeros_as(grad, input_sizes), dim, positions, windows)


# ----------------------------------------------------------------------------------------------------- moving elements


@rule(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if any(x.shape != tensors[0].shape for x in tensors):
        return NotImplemented  # eager raises
    dim = wrapped(dim, tensors[0].ndim + 1)
    if dim == tensors[0].ndim:
        return aten.cat.default([x.unsqueeze(dim) for x in tensors], dim)
    sizes = tensors[0].shape
    return aten.cat.default(tensors, dim).view(*sizes[:dim], len(tensors), *sizes[dim:])


@rule(aten.block_diag.default)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    if any(x.ndim > 2 for x in tensors):
        return NotImplemented  # eager raises
    dtype = common_dtype(*tensors)
    blocks = [torch.atleast_2d(x).to(dtype) for x in tensors]
    columns = sum(b.shape[1] for b in blocks)
    rows, before = [], 0
    for block in blocks:
        width = block.shape[1]
        rows.append(aten.constant_pad_nd.default(block, [before, columns - before - width]))
        before = before + width
    return torch.cat(rows, 0)


@rule(aten.roll.default)
def roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    if len(dims) == 0 and len(shifts) == 1:
        return roll(x.reshape(-1), shifts, [0]).view(x.shape)
    if len(shifts) != len(dims):
        return NotImplemented  # eager raises
    if x.numel() == 0:
        return aten.clone.default(x)
    out = x
    for shift, dim in zip(shifts, dims, strict=True):
        length = out.shape[dim]
        positions = (torch.arange(length, device=x.device) - shift) % length
        layout = suggested_format(out)
        # Eager calls cat on two parts. If one is empty it is contiguous, and so is the result.
        if layout is not torch.contiguous_format and shift % length == 0:
            layout = torch.contiguous_format
        out = in_format(torch.index_select(out, dim, positions), layout)
    return out


@rule(aten.rot90.default)
def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    if len(dims) != 2 or x.ndim < 2 or wrapped(dims[0], x.ndim) == wrapped(dims[1], x.ndim):
        return NotImplemented  # eager raises
    first, second = dims
    match k % 4:
        case 1:
            return torch.flip(x, [second]).transpose(first, second)
        case 2:
            return torch.flip(x, [first, second])
        case 3:
            return torch.flip(x, [first]).transpose(first, second)
        case _:
            return aten.clone.default(x, memory_format=torch.contiguous_format)


@rule(aten.view_copy.default)
def view_copy(x: Tensor, size: Sequence[Any]) -> Tensor:
    """Unlike `view`, it works for all strides."""
    return _copied(torch.reshape(x, size))


def _copied(x: Tensor) -> Tensor:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    r = upscale_factor
    if x.ndim < 3 or r <= 0 or x.shape[-3] % (r * r) != 0:
        return NotImplemented  # eager raises
    batch, (c, h, w) = list(x.shape[:-3]), x.shape[-3:]
    grid = x.reshape([*batch, c // (r * r), r, r, h, w])  # c, dy, dx, h, w
    n = len(batch)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]  # c, h, dy, w, dx
    return laid_out_as(_copied(grid.permute(order)).view([*batch, c // (r * r), h * r, w * r]), x)


@rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor
    if x.ndim < 3 or r <= 0 or x.shape[-1] % r != 0 or x.shape[-2] % r != 0:
        return NotImplemented  # eager raises
    if x.numel() == 0:
        return aten.clone.default(x)  # eager keeps the shape of an empty tensor
    batch, (c, h, w) = list(x.shape[:-3]), x.shape[-3:]
    grid = x.reshape([*batch, c, h // r, r, w // r, r])  # c, h, dy, w, dx
    n = len(batch)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]  # c, dy, dx, h, w
    return laid_out_as(_copied(grid.permute(order)).view([*batch, c * r * r, h // r, w // r]), x)


@rule(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    if x.ndim < 3 or groups <= 0 or x.shape[1] % groups != 0:
        return NotImplemented  # eager raises
    if x.numel() == 0:
        return aten.alias.default(x)
    n, c, *rest = x.shape
    return laid_out_as(_copied(x.reshape([n, groups, c // groups, *rest]).transpose(1, 2)).view(x.shape), x)


@rule(aten.native_channel_shuffle.default)
def native_channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Works as well for strides that its fake kernel refuses, which have no view as groups."""
    return NotImplemented if x.numel() == 0 else channel_shuffle(x, groups)


def _zero_of(x: Tensor) -> Tensor:
    """A zero of the tensor's dtype: the number 0 would promote bool to int64."""
    return aten.scalar_tensor.default(0, dtype=x.dtype, device=x.device)


@rule(aten.tril.default)
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(x, lambda distance: distance <= diagonal)


@rule(aten.triu.default)
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(x, lambda distance: distance >= diagonal)


def _triangle(x: Tensor, is_kept: Callable[[Tensor], Tensor]) -> Tensor:
    if x.ndim < 2:
        return NotImplemented  # eager raises
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(-1)
    columns = torch.arange(x.shape[-1], device=x.device)
    return row_major(torch.where(is_kept(columns - rows), x, _zero_of(x)))


@rule(aten.diag_embed.default)
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    ndim = x.ndim + 1
    first, second = wrapped(dim1, ndim), wrapped(dim2, ndim)
    if first == second or x.ndim == 0:
        return NotImplemented  # eager raises
    n = x.shape[-1] + abs(offset)
    rows = torch.arange(n, device=x.device).unsqueeze(-1)
    columns = torch.arange(n, device=x.device)
    before, after = (offset, 0) if offset >= 0 else (0, -offset)
    spread = aten.constant_pad_nd.default(x, [before, after]).unsqueeze(-2)  # each value in its column
    square = torch.where(columns - rows == offset, spread, _zero_of(x))
    if (first, second) == (ndim - 2, ndim - 1):
        return row_major(square)
    return square.movedim((-2, -1), (first, second)).clone(memory_format=torch.contiguous_format)  # no view


@rule(aten._chunk_cat.default)
def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    """Pad each tensor to a multiple of `num_chunks`; row i of the result is chunk i of every tensor, flattened and joined."""
    dim = wrapped(dim, tensors[0].ndim)
    rows = []
    for x in tensors:
        length = x.shape[dim]
        each = -(-length // num_chunks)
        pad = [0, 0] * (x.ndim - dim - 1) + [0, each * num_chunks - length]
        padded = aten.constant_pad_nd.default(x, pad)
        rows.append(padded.reshape([*x.shape[:dim], num_chunks, -1]))
    return torch.cat(rows, -1)


@rule(aten.fill.Tensor)
def fill(x: Tensor, value: Tensor) -> Tensor:
    if value.ndim != 0:
        return NotImplemented  # eager raises
    return aten.copy.default(aten.empty_like.default(x), value)
