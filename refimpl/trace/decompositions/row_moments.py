"""Mean and deviation of rows, as the kernels of layer and group norms find them where squares overflow.

A CPU's kernels give each number of a vector a running mean and sum of squares (a lane), put what a last incomplete vector holds
into one more pair, and add up the pairs, that one first. What meets a pair that is still empty is multiplied by its count: zero
times infinity is NaN.
"""

from __future__ import annotations

import math

import torch

from refimpl.trace.decompositions.followed_kernels import follows_cpu
from refimpl.trace.decompositions.promotion import cast, statistics_dtype

Tensor = torch.Tensor
_VECTOR_BYTES = 32


def mean_and_rstd(x: Tensor, dims: list[int], eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps) over `dims`, which are kept; and the mean as eager gives it back: NaN with an infinite
    element, which is not asked of whole long rows. The output is NaN there by the other one as well.

    dtype: of the rows before they were converted to the one that is computed in.
    """
    length, vector = math.prod(x.shape[d] for d in dims), _VECTOR_BYTES // dtype.itemsize
    is_rare = has_rare_rows(x.device, length, dtype)
    is_short = is_rare and length < 2 * vector
    # A running mean does not overflow as a sum does. Whole long rows, which models have, are lost with any such number.
    wide = statistics_dtype(x.dtype, x.device) if is_rare else x.dtype
    mean = cast(torch.mean(cast(x, wide), dims, keepdim=True), x.dtype)
    variance = variance_around(mean, x, dims, keepdim=True)
    returned_mean = torch.where(torch.isnan(variance), math.nan, mean) if is_rare else mean
    if is_short:
        variance = torch.where(_is_lost_in_short(x, dims, mean, length, vector), math.nan, variance)
    elif not is_rare:
        variance = torch.where(torch.isinf(variance + mean * mean), math.nan, variance)
    return mean, torch.rsqrt(variance + eps), returned_mean


def has_rare_rows(device: torch.device, length: int, dtype: torch.dtype) -> bool:
    """Whether rows of `length` numbers are less than two vectors, or end in an incomplete one, of the CPU that is followed.

    Their variance may overflow to infinity, and 1/sqrt of it be 0; that of other rows becomes NaN then.
    """
    vector = _VECTOR_BYTES // dtype.itemsize
    return follows_cpu(device) and type(length) is int and (length < 2 * vector or length % vector != 0)


def variance_around(mean: Tensor, x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    """The mean square of what `x` is away from a mean that broadcasts, in the dtype of both: `torch.var` has one of its own."""
    away = x - mean
    return torch.mean(away * away, dims, keepdim=keepdim)


def _is_lost_in_short(x: Tensor, dims: list[int], mean: Tensor, length: int, vector: int) -> Tensor:
    """Whether the variance of a row of less than two vectors ends in NaN.

    Rows of less than one vector meet empty lanes in the end, one whole vector begins with an empty pair.
    """
    is_lost = torch.isinf(torch.amax(x, dims, keepdim=True) - torch.amin(x, dims, keepdim=True))
    if length > vector:
        return is_lost
    first = mean
    if length == vector:
        first = x
        for dim in dims:
            first = first.narrow(dim, 0, 1)
    return is_lost | torch.isinf(first * first)
