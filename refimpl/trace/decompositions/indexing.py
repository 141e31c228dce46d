"""Decompositions of ops that read or write elements by indices or masks.

Counterpart: torch/_refs/__init__.py and torch/_decomp/decompositions.py, index_*, masked_*, embedding*
Differs: all decompose into index, index_put, gather, scatter_add, scatter_reduce or where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.layouts import row_major, with_strides_of
from refimpl.trace.decompositions.promotion import cast, computation_dtype
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.decompositions.views import wrapped

Tensor = torch.Tensor


@rule(aten.masked_fill.Scalar)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    if mask.dtype is not torch.bool:
        return NotImplemented  # eager raises
    return row_major(torch.where(mask, _number_as(value, x), x))


@rule(aten.masked_fill.Tensor)
def masked_fill_tensor(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or value.ndim != 0 or not torch.can_cast(value.dtype, x.dtype):
        return NotImplemented  # eager raises
    return row_major(torch.where(mask, cast(value, x.dtype), x))


def _number_as(value: Any, x: Tensor) -> Tensor:
    return aten.scalar_tensor.default(value, dtype=x.dtype, device=x.device)


@rule(aten.index_fill.int_Scalar)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return _index_filled(x, dim, index, _number_as(value, x))


@rule(aten.index_fill.int_Tensor)
def index_fill_tensor(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    if value.ndim != 0 or (value.is_complex() and not x.is_complex()):
        return NotImplemented  # eager raises
    return _index_filled(x, dim, index, cast(value, x.dtype))


def _index_filled(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    if x.ndim == 0:
        return aten.index_put.default(x.unsqueeze(0), [index.reshape(-1)], value).squeeze(0)
    return aten.index_put.default(x, _along(x, dim, index), value)


def _along(x: Tensor, dim: int, index: Tensor) -> list[Tensor | None]:
    """Indices for index_put that select `index` in one dimension and everything in the others."""
    return [None] * wrapped(dim, x.ndim) + [index.reshape(-1)]


@rule(aten.index_copy.default)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if x.ndim == 0:
        return aten.index_put.default(x.unsqueeze(0), [checked(index.reshape(-1), 1)], source.reshape(-1)).squeeze(0)
    rows = checked(index, x.shape[wrapped(dim, x.ndim)])
    return row_major(aten.index_put.default(x, _along(x, dim, rows), source))


@rule(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    added = source if alpha == 1 else cast(source * alpha, source.dtype)
    if x.ndim == 0:
        rows = checked(index.reshape(-1), 1)
        return aten.index_put.default(x.unsqueeze(0), [rows], added.reshape(-1), True).squeeze(0)
    if _is_scattered_by_eager(x, dim, index, alpha):
        at = wrapped(dim, x.ndim)
        rows = index.reshape([-1 if d == at else 1 for d in range(x.ndim)]).expand(source.shape)
        return aten.scatter_add.default(x, at, rows, source)
    rows = checked(index, x.shape[wrapped(dim, x.ndim)])
    return row_major(aten.index_put.default(x, _along(x, dim, rows), added, True))


def _is_scattered_by_eager(x: Tensor, dim: int, index: Tensor, alpha: Any) -> bool:
    """Whether eager's CPU kernel calls scatter_add, which raises RuntimeError, not IndexError, for an index out of bounds."""
    return x.ndim > 1 and alpha == 1 and index.dtype == torch.int64 and wrapped(dim, x.ndim) in (0, x.ndim - 1)


def checked(index: Tensor, size: Any) -> Tensor:
    """The index, with a check in the graph that raises IndexError for negative and too large ones.

    `index_select` of positions is what raises; gather and scatter would raise another error.
    """
    positions = torch.arange(size, device=index.device)
    return torch.index_select(positions, 0, index.reshape(-1)).view(index.shape)


@rule(aten.index_reduce.default)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if x.ndim == 0:
        return NotImplemented
    dim = wrapped(dim, x.ndim)
    rows = checked(index, x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)]).expand(source.shape)
    return aten.scatter_reduce.two(x, dim, rows, source, reduce, include_self=include_self)


@rule(aten.scatter.reduce)
def scatter_with(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return aten.scatter_reduce.two(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@rule(aten.scatter.value_reduce)
def scatter_number_with(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    src = aten.full.default(index.shape, value, dtype=x.dtype, device=x.device)
    return aten.scatter_reduce.two(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@rule(aten.take.default)
def take(x: Tensor, index: Tensor) -> Tensor:
    return row_major(aten.index.Tensor(x.reshape(-1), [index]))


@rule(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if x.ndim == 0 or x.numel() == 0:
        return NotImplemented
    if x.is_contiguous():
        out = aten.index_put.default(x.view(-1), [index.reshape(-1)], source.reshape(-1), accumulate).view(x.shape)
        return with_strides_of(x, out)
    index = aten.index.Tensor(torch.arange(x.numel(), device=x.device), [index])  # raises for an index out of bounds
    rest = torch.where(index < 0, index + x.numel(), index).reshape(-1)
    indices: list[Tensor] = []
    for size in reversed(x.shape):  # the last dimension runs fastest
        indices.insert(0, rest % size)
        rest = torch.div(rest, size, rounding_mode="floor")
    return aten.index_put.default(x, indices, source.reshape(-1), accumulate)


@rule(aten._unsafe_index.Tensor)
def unsafe_index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return aten.index.Tensor(x, indices)


@rule(aten._unsafe_index_put.default)
def unsafe_index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return aten.index_put.default(x, indices, values, accumulate)


def _inside(x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Clamps indices to valid ones: they may be out of bounds where the mask is False. Negative ones count from the end."""
    inside: list[Tensor | None] = []
    for index, size in zip(indices, x.shape, strict=False):
        inside.append(None if index is None else torch.clamp(index, min=-size, max=size - 1))
    return inside


@rule(aten._unsafe_masked_index.default)
def unsafe_masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Any) -> Tensor:
    if x.numel() == 0 or mask.dtype is not torch.bool:
        return NotImplemented
    return masked_fill(aten.index.Tensor(x, _inside(x, indices)), ~mask, fill)


@rule(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    if mask.dtype is not torch.bool:
        return NotImplemented
    if x.numel() == 0:
        return aten.clone.default(x)
    inside = _inside(x, indices)
    return aten.index_put.default(x, inside, masked_fill(values, ~mask, 0), True)


@rule(aten.embedding.default)
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if weight.ndim != 2:
        return NotImplemented  # eager raises
    rows = torch.index_select(weight, 0, indices.reshape(-1))
    return rows.view([*indices.shape, weight.shape[1]])


@rule(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Tensor:
    if not (grad.is_floating_point() or grad.is_complex()):
        return NotImplemented
    width = grad.shape[-1]
    dtype = computation_dtype(grad.dtype)
    rows, index = cast(grad, dtype).reshape(indices.numel(), width), indices.reshape(-1)
    if scale_grad_by_freq:
        counts = torch.zeros([num_weights], dtype=dtype, device=grad.device)
        counts = aten.index_put.default(counts, [index], torch.ones_like(index, dtype=dtype), True)
        rows = rows / counts[index].unsqueeze(1)
    rows = torch.where((index == padding_idx).unsqueeze(1), 0, rows)
    out = torch.zeros([num_weights, width], dtype=dtype, device=grad.device)
    return cast(aten.index_put.default(out, [index], rows, True), grad.dtype)
