"""Decompositions of vector norms: linalg_vector_norm, norm, dist.

Counterpart: torch/_refs/linalg/__init__.py, vector_norm
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from refimpl.trace.decompositions.promotion import cast, computation_dtype, real_dtype
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.eager_facts import is_known

Tensor = torch.Tensor


@rule(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    out_dtype = real_dtype(x.dtype if dtype is None else dtype)
    if not out_dtype.is_floating_point or x.numel() == 0:
        return NotImplemented
    z = torch.abs(cast(x, computation_dtype(x.dtype if dtype is None else dtype)))
    dims = list(range(x.ndim)) if not dim else list(dim)
    is_single = (x.ndim > 0 or not dim) and all(is_known(x.shape[d]) and x.shape[d] == 1 for d in dims)
    if is_single and ord != 0:
        ord = math.inf  # eager returns the absolute value of a single element, without powers that could overflow
    return cast(norm_by_powers(z, ord, dims, keepdim), out_dtype)


def norm_by_powers(z: Tensor, ord: float, dims: list[int], keepdim: bool = False) -> Tensor:
    """The norm from absolute values in the computation dtype, by powers even for a single element."""
    if ord == math.inf:
        return torch.amax(z, dims, keepdim)
    if ord == -math.inf:
        return torch.amin(z, dims, keepdim)
    if ord == 0:
        return torch.sum(cast(z != 0, z.dtype), dims, keepdim)
    if ord == 1:
        return torch.sum(z, dims, keepdim)
    if ord == 2:
        return torch.sqrt(torch.sum(z * z, dims, keepdim))
    return torch.pow(torch.sum(torch.pow(z, ord), dims, keepdim), 1 / ord)


@rule(aten.norm.Scalar)
def norm(x: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(x, p)


@rule(aten.norm.ScalarOpt_dim)
def norm_over(x: Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim)


@rule(aten.norm.ScalarOpt_dtype)
def norm_in(x: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dtype=dtype)


@rule(aten.norm.ScalarOpt_dim_dtype)
def norm_over_in(x: Tensor, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


@rule(aten.dist.default)
def dist(x: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(x - other, p)
