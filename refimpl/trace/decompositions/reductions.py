"""Decompositions of reductions.

Counterpart: torch/_refs/__init__.py and torch/_decomp/decompositions.py, reductions
Differs: sum, mean, prod, amax, amin, any and var are core; all others decompose into them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.layouts import row_major
from refimpl.trace.decompositions.promotion import (
    BOOL,
    INT,
    cast,
    computation_dtype,
    kind_of,
    real_dtype,
    statistics_dtype,
)
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.eager_facts import is_known

Tensor = torch.Tensor


@rule(aten.sum.default)
def sum_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.dim_IntList(x, [], dtype=dtype)


@rule(aten.all.default)
def all_(x: Tensor) -> Tensor:
    return _as_all(x, ~torch.any(x == 0))


@rule(aten.all.dim, aten.all.dims)
def all_over(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    is_false = x == 0
    return _as_all(x, ~(torch.any(is_false, keepdim=keepdim) if dim is None else torch.any(is_false, dim, keepdim)))


def _as_all(x: Tensor, result: Tensor) -> Tensor:
    return cast(result, torch.uint8) if x.dtype is torch.uint8 else result


@rule(aten.max.default)
def max_of_all(x: Tensor) -> Tensor:
    return torch.amax(x)


@rule(aten.min.default)
def min_of_all(x: Tensor) -> Tensor:
    return torch.amin(x)


@rule(aten.aminmax.default)
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = list(range(x.ndim)) if dim is None else [dim]
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)


@rule(aten.count_nonzero.default)
def count_nonzero(x: Tensor, dim: int | None = None) -> Tensor:
    return torch.sum(x != 0) if dim is None else torch.sum(x != 0, [dim])


@rule(aten.count_nonzero.dim_IntList)
def count_nonzero_over(x: Tensor, dim: Sequence[int]) -> Tensor:
    return torch.sum(x != 0, list(dim))


@rule(aten.nansum.default)
def nansum(
    x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if x.is_complex():
        return NotImplemented
    kept = x if kind_of(x.dtype) in (BOOL, INT) else torch.where(torch.isnan(x), 0, x)
    return torch.sum(kept, [] if dim is None else list(dim), keepdim, dtype=dtype)


@rule(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """Shifted by the largest element, unless that is infinite, so that exp does not overflow."""
    if x.is_complex() or x.numel() == 0:
        return NotImplemented
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    z = cast(x, computation_dtype(dtype))
    dims = list(dim) or list(range(x.ndim))
    largest = torch.amax(z, dims, keepdim=True)
    shift = torch.where(torch.abs(largest) == math.inf, 0, largest)
    out = torch.log(torch.sum(torch.exp(z - shift), dims, keepdim=True)) + shift
    return cast(out if keepdim else torch.squeeze(out, dims), dtype)


@rule(aten.std.correction)
def std(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return cast(torch.sqrt(_variance(x, dim, correction, keepdim)), real_dtype(x.dtype))


@rule(aten.var_mean.correction)
def var_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    z = cast(x, statistics_dtype(x.dtype, x.device))
    variance = torch.var(z, dim, correction=_correction(correction), keepdim=keepdim)
    return cast(variance, real_dtype(x.dtype)), cast(_running_mean(z, dim, keepdim), x.dtype)


@rule(aten.std_mean.correction)
def std_mean(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    z = cast(x, statistics_dtype(x.dtype, x.device))
    variance = torch.var(z, dim, correction=_correction(correction), keepdim=keepdim)
    return cast(torch.sqrt(variance), real_dtype(x.dtype)), cast(_running_mean(z, dim, keepdim), x.dtype)


def _variance(x: Tensor, dim: Any, correction: float | None, keepdim: bool) -> Tensor:
    """The variance in the dtype in which eager adds squares. A full reduction on a CPU uses a mean rounded to float32."""
    z = cast(x, statistics_dtype(x.dtype, x.device))
    dims = _dims(x, dim)
    is_only_result = all(d in dims or (is_known(size) and size == 1) for d, size in enumerate(x.shape))
    if not follows_cpu(x.device) or x.dtype is not torch.float32 or not is_only_result or not is_known(x.numel()):
        return torch.var(z, dim, correction=_correction(correction), keepdim=keepdim)
    away = z - cast(torch.mean(x, dims, keepdim=True), z.dtype)
    return torch.sum(away * away, dims, keepdim) / max(x.numel() - _correction(correction), 0)


_SMALL = 2.0**-64  # a sum of numbers scaled by this does not overflow


def _running_mean(x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Eager's running mean: it does not overflow as a sum would, and an infinite element makes it NaN with the next element.

    On a CPU an infinite last element leaves it infinite.
    """
    dims = _dims(x, dim)
    mean = torch.mean(x, dims, keepdim)
    if x.is_complex() or math.prod(x.shape[d] for d in dims) == 1:
        return mean
    small = x * _SMALL
    of_large = torch.mean(small, dims, keepdim) / _SMALL
    passed = of_large
    if follows_cpu(x.device):
        passed = torch.sum(torch.where(_is_last(x, dims), 0, small), dims, keepdim)
    return torch.where(torch.isinf(mean), torch.where(torch.isinf(passed), math.nan, of_large), mean)


def _is_last(x: Tensor, dims: list[int]) -> Tensor:
    """A mask of the last element over `dims`; broadcasts against `x`."""
    is_last = torch.ones([1] * x.ndim, dtype=torch.bool, device=x.device)
    for dim in dims:
        size = x.shape[dim]
        place = torch.arange(size, device=x.device).reshape([size if d == dim else 1 for d in range(x.ndim)])
        is_last = is_last & (place == size - 1)
    return is_last


def _dims(x: Tensor, dim: Any) -> list[int]:
    """The reduced dimensions as non-negative numbers; all if none are given."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % x.ndim for d in given] if given and x.ndim else list(range(x.ndim))


def _correction(value: float | None) -> float:
    return 1 if value is None else value


@rule(aten.trace.default)
def trace(x: Tensor) -> Tensor:
    if x.ndim != 2:
        return NotImplemented  # eager raises
    return torch.sum(torch.diagonal(x))


@rule(aten.isin.Tensor_Tensor)
def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    tests = test_elements.reshape([1] * elements.ndim + [-1])
    found = torch.any(elements.unsqueeze(-1) == tests, -1)
    return ~found if invert else found


@rule(aten.isin.Tensor_Scalar)
def isin_scalar(elements: Tensor, test_element: float, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    return row_major(elements != test_element if invert else elements == test_element)


@rule(aten.isin.Scalar_Tensor)
def isin_scalar_tensor(
    element: float, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    found = torch.any(test_elements == element)
    return ~found if invert else found
