"""Mean and 1/std of rows as eager's layer and group norm kernels compute them, infinities and NaN by overflow included.

CPU kernels use Welford's algorithm (RowwiseMoments): each lane of a vector has a running mean and sum of squares, the last
incomplete vector has one more pair, and the pairs are added up, that one first. Adding to an empty pair multiplies by its count
of 0, which makes an infinity NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.promotion import cast, statistics_dtype
from refimpl.trace.eager_facts import is_known, row_vector_bytes

Tensor = torch.Tensor


def mean_and_rstd(x: Tensor, dims: list[int], eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps) over the last dimensions `dims`, which are kept, and the mean that eager returns.

    The returned mean is NaN for a row with an infinite element; this is only computed for the rows of `has_rare_rows`. `dtype` is
    the dtype of the rows before they were cast to the computation dtype.
    """
    is_rare = has_rare_rows(x.device, math.prod(x.shape[d] for d in dims), dtype)
    # A running mean does not overflow as a sum would.
    wide = statistics_dtype(x.dtype, x.device) if follows_cpu(x.device) else x.dtype
    mean = cast(torch.mean(cast(x, wide), dims, keepdim=True), x.dtype)
    variance = variance_around(mean, x, dims, keepdim=True)
    if not follows_cpu(x.device):
        return mean, torch.rsqrt(torch.where(torch.isinf(variance + mean * mean), math.nan, variance) + eps), mean
    returned_mean = torch.where(torch.isnan(variance), math.nan, mean) if is_rare else mean
    for is_nan in _nan_rows(x, dims, mean, dtype):
        variance = torch.where(is_nan, math.nan, variance)
    return mean, torch.rsqrt(variance + eps), returned_mean


def has_rare_rows(device: torch.device, length: int, dtype: torch.dtype) -> bool:
    """Whether a CPU kernel's rows of this length are shorter than two vectors or end in an incomplete one.

    Overflow is reproduced in more detail for such rows. A symbolic length records a guard.
    """
    vector = row_vector_bytes() // dtype.itemsize
    return follows_cpu(device) and is_known(length) and (length < 2 * vector or length % vector != 0)


def variance_around(mean: Tensor, x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    """The mean of (x - mean)**2 for a given mean that broadcasts, in the dtype of both; `torch.var` computes its own mean."""
    away = x - mean
    return torch.mean(away * away, dims, keepdim=keepdim)


def _nan_rows(x: Tensor, dims: list[int], mean: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Masks of the rows whose variance is NaN in eager: max - min overflows; or an infinite square is added to an empty pair
    (from the first lane in rows of whole vectors, from any element in rows shorter than a vector)."""
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
