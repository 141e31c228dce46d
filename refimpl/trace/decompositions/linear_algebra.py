"""Decompositions of matrix and vector products.

Counterpart: torch/_refs/__init__.py and torch/_decomp/decompositions.py, add*, dot, mv, linalg_cross, _trilinear
Differs: mm, bmm and addmm are core; with beta = 0 the added operand is not read, so that its NaN does not spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu, uses_cpu_blas
from refimpl.trace.decompositions.layouts import with_strides_of
from refimpl.trace.decompositions.promotion import BOOL, INT, cast, common_dtype, computation_dtype, kind_of
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.decompositions.vector_norms import norm_by_powers
from refimpl.trace.dtypes import rounded_number
from refimpl.trace.eager_facts import is_known
from refimpl.trace.layouts import elementwise_strides

Tensor = torch.Tensor


@rule(aten.mv.default)
def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    if matrix.ndim != 2 or vector.ndim != 1 or matrix.dtype is not vector.dtype:
        return NotImplemented  # eager raises
    return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)


@rule(aten.dot.default)
def dot(x: Tensor, y: Tensor) -> Tensor:
    if x.ndim != 1 or y.ndim != 1 or x.shape != y.shape or x.dtype is not y.dtype:
        return NotImplemented  # eager raises
    if x.is_conj() and y.is_conj():
        return dot(x.conj(), y.conj()).conj()  # a lazy conjugate, as in eager
    dtype = computation_dtype(x.dtype)
    return cast(torch.sum(cast(x, dtype) * cast(y, dtype)), x.dtype)


@rule(aten.vdot.default)
def vdot(x: Tensor, y: Tensor) -> Tensor:
    if y.is_conj() and not x.is_conj():
        return aten.dot.default(x, y.conj()).conj()  # a lazy conjugate, as in eager
    return aten.dot.default(aten._conj_physical.default(x) if x.is_complex() else x, y)


def _plus(beta: Any, x: Tensor, alpha: Any, product: Tensor) -> Tensor:
    """alpha * product + beta * x; x is not read if beta is 0. Do not pass a product rounded to half: it may have overflowed."""
    dtype = computation_dtype(product.dtype)
    if kind_of(dtype) in (BOOL, INT):
        beta, alpha = int(beta), int(alpha)  # integer kernels truncate the factors
    out = cast(product, dtype)
    out = out if alpha == 1 else out * alpha
    if beta != 0:
        z = cast(x, dtype)
        out = out + (z if beta == 1 else z * beta)
    return cast(out, product.dtype)


def _is_ignored(alpha: Any, x: Tensor) -> bool:
    """Whether eager does not compute the product, because alpha is 0 and BLAS skips it."""
    return isinstance(alpha, (int, float)) and alpha == 0 and uses_cpu_blas(x.dtype, x.device)


def _scaled(beta: Any, x: Tensor, shape: Sequence[Any], like: Tensor) -> Tensor:
    if beta == 0:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return (x if beta == 1 else x * beta).expand(shape).clone(memory_format=torch.contiguous_format)


def _is_half(x: Tensor) -> bool:
    return x.is_floating_point() and computation_dtype(x.dtype) is not x.dtype


@rule(aten.addmv.default)
def addmv(x: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if matrix.ndim != 2 or vector.ndim != 1:
        return NotImplemented  # eager raises
    if any(type(size) is int and size == 0 for size in matrix.shape):
        return NotImplemented  # eager returns x in its own shape
    if _is_half(matrix):
        column = x.unsqueeze(-1) if x.ndim else x
        return aten.addmm.default(column, matrix, vector.unsqueeze(1), beta=beta, alpha=alpha).squeeze(1)
    if _is_ignored(alpha, matrix):
        return _scaled(beta, x, matrix.shape[:1], matrix)
    return _plus(beta, x, alpha, aten.mv.default(matrix, vector))


@rule(aten.addr.default)
def addr(x: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if first.ndim != 1 or second.ndim != 1:
        return NotImplemented  # eager raises
    dtype = common_dtype(x, first, second)
    if dtype is torch.bool:
        outer = first.unsqueeze(1) & second
        outer = outer if alpha else torch.zeros_like(outer)
        return x | outer if beta else _laid_out_with(x, outer)
    rounds_each = dtype.is_floating_point and follows_cpu(x.device)
    inner = dtype if rounds_each else computation_dtype(dtype)
    if rounds_each:
        beta, alpha = rounded_number(beta, dtype), rounded_number(alpha, dtype)
    first = cast(first, inner)
    outer = (first if alpha == 1 else first * alpha).unsqueeze(1) * cast(second, inner)
    if beta == 0:
        return _laid_out_with(x, cast(outer, dtype))
    z = cast(x, inner)
    return cast((z if beta == 1 else z * beta) + outer, dtype)  # x first: the strides of the first operand decide


def _laid_out_with(x: Tensor, outer: Tensor) -> Tensor:
    """The outer product with the strides that its sum with x would have."""
    if not all(is_known(number) for tensor in (x, outer) for number in (*tensor.shape, *tensor.stride())):
        return outer
    strides = elementwise_strides(outer.shape, [(x.shape, x.stride()), (outer.shape, outer.stride())])
    return with_strides_of(outer.new_empty_strided(outer.shape, strides), outer)


@rule(aten.baddbmm.default)
def baddbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if _is_half(batch1):
        inner = computation_dtype(batch1.dtype)
        return cast(_plus(beta, x, alpha, torch.bmm(cast(batch1, inner), cast(batch2, inner))), batch1.dtype)
    return _plus(beta, x, alpha, torch.bmm(batch1, batch2))


@rule(aten.addbmm.default)
def addbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The sum of a batch of products is one matrix product, with the batch joined to the inner dimension."""
    count, n, inner = batch1.shape
    left = batch1.transpose(0, 1).reshape(n, count * inner)
    right = batch2.reshape(count * inner, batch2.shape[2])
    if _is_half(left):
        return aten.addmm.default(x, left, right, beta=beta, alpha=alpha)
    if _is_ignored(alpha, left):
        return _scaled(beta, x, (n, right.shape[1]), left)
    return _plus(beta, x, alpha, torch.mm(left, right))


@rule(aten.linalg_cross.default)
def linalg_cross(x: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    if x.ndim != other.ndim or x.shape[dim] != 3 or other.shape[dim] != 3:
        return NotImplemented  # eager raises
    x, other = torch.broadcast_tensors(x, other)
    dtype = computation_dtype(common_dtype(x, other))
    a, b = cast(x, dtype), cast(other, dtype)

    def turned(z: Tensor, steps: int) -> Tensor:
        return aten.roll.default(z, [steps], [dim])

    out = turned(a, -1) * turned(b, -2) - turned(a, -2) * turned(b, -1)
    return cast(out, common_dtype(x, other))


@rule(aten._trilinear.default)
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three operands, unsqueezed at `expand1`, `expand2` and `expand3`, summed over `sumdim`.

    As in eager, dimensions that i3 does not have are summed before i3, which may be infinite, is multiplied. `unroll_dim`, over
    which eager loops, is summed last.
    """
    factors = []
    for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        for dim in sorted(dims):
            x = x.unsqueeze(dim)
        factors.append(cast(x, computation_dtype(x.dtype)))
    early = [dim for dim in sumdim if dim in expand3 and dim != unroll_dim]
    late = [dim for dim in sumdim if dim not in early]
    product = factors[0] * factors[1]
    product = (torch.sum(product, early, keepdim=True) if early else product) * factors[2]
    product = torch.sum(product, late, keepdim=True) if late else product
    return cast(torch.squeeze(product, list(sumdim)), i1.dtype)


@rule(aten._cdist_forward.default)
def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances by differences in every `compute_mode`; the one that multiplies matrices is less accurate."""
    if not p >= 0:
        return NotImplemented  # eager raises
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if difference.numel() == 0:
        return torch.zeros(difference.shape[:-1], dtype=x1.dtype, device=x1.device)
    if p == 0:
        return torch.sum(torch.clamp(torch.ceil(torch.abs(difference)), max=1), -1)  # NaN stays NaN
    if p == math.inf:
        return torch.amax(torch.nan_to_num(torch.abs(difference), 0.0, math.inf), -1)  # eager's maximum ignores NaN
    return norm_by_powers(torch.abs(difference), p, [-1])
