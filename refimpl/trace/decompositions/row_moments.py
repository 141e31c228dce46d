"""Mean and deviation of rows, as the kernels of layer and group norms find them where squares overflow.

A CPU's kernels give each number of a vector a running mean and sum of squares (a lane), put what a last incomplete vector holds
into one more pair, and add up the pairs, that one first. What meets a pair that is still empty is multiplied by its count: zero
times infinity is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from refimpl.trace.decompositions.followed_kernels import follows_cpu
from refimpl.trace.decompositions.promotion import cast, statistics_dtype
from refimpl.trace.eager_facts import row_vector_bytes
from refimpl.trace.size_checks import is_known

Tensor = torch.Tensor


def mean_and_rstd(x: Tensor, dims: list[int], eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps) over the last dimensions `dims`, which are kept; and the mean as eager gives it back: NaN
    with an infinite element, which is not asked of whole long rows. The output is NaN there by the other one as well.

    dtype: of the rows before they were converted to the one that is computed in.
    """
    is_rare = has_rare_rows(x.device, math.prod(x.shape[d] for d in dims), dtype)
    # A running mean does not overflow as a sum does.
    wide = statistics_dtype(x.dtype, x.device) if follows_cpu(x.device) else x.dtype
    mean = cast(torch.mean(cast(x, wide), dims, keepdim=True), x.dtype)
    variance = variance_around(mean, x, dims, keepdim=True)
    if not follows_cpu(x.device):
        return mean, torch.rsqrt(torch.where(torch.isinf(variance + mean * mean), math.nan, variance) + eps), mean
    returned_mean = torch.where(torch.isnan(variance), math.nan, mean) if is_rare else mean
    for is_lost in _losses(x, dims, mean, dtype):
        variance = torch.where(is_lost, math.nan, variance)
    return mean, torch.rsqrt(variance + eps), returned_mean


def has_rare_rows(device: torch.device, length: int, dtype: torch.dtype) -> bool:
    """Whether rows of `length` numbers are less than two vectors, or end in an incomplete one, of the CPU that is followed.

    Numbers whose sums or squares overflow are followed more closely there. Of lengths that are symbols this is a guard.
    """
    vector = row_vector_bytes() // dtype.itemsize
    return follows_cpu(device) and is_known(length) and (length < 2 * vector or length % vector != 0)


def variance_around(mean: Tensor, x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    """The mean square of what `x` is away from a mean that broadcasts, in the dtype of both: `torch.var` has one of its own."""
    away = x - mean
    return torch.mean(away * away, dims, keepdim=keepdim)


def _losses(x: Tensor, dims: list[int], mean: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Where the variance of a row ends in NaN: in rows of whole vectors the first lane meets an empty pair, rows of less than one
    vector meet empty lanes in the end. Where the largest number minus the smallest one overflows, differences mostly do."""
    length, vector = math.prod(x.shape[d] for d in dims), row_vector_bytes() // dtype.itemsize
    if not is_known(length):
        return
    yield torch.isinf(torch.amax(x, dims, keepdim=True) - torch.amin(x, dims, keepdim=True))
    if length < vector:
        yield torch.isinf(mean * mean)
    elif length % vector == 0:
        lanes = row_vector_bytes() // x.dtype.itemsize
        is_first = torch.arange(length, device=x.device).reshape([x.shape[d] for d in dims]) & (lanes - 1) == 0
        first = torch.mean(torch.where(is_first, x, 0.0), dims, keepdim=True) * lanes
        yield torch.isinf(first * first)
