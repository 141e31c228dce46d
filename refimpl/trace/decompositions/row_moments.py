"""Mean and deviation of rows, as the kernels of layer and group norms find them where squares overflow."""

from __future__ import annotations

import math

import torch

from refimpl.trace.decompositions.promotion import cast, statistics_dtype

Tensor = torch.Tensor
_LANE_BYTES = 32  # of the vectors that eager takes means with


def mean_and_rstd(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps) over `dims`, which are kept; and the mean as eager gives it back: NaN with an infinite
    element, which is asked of short rows only. The output is NaN there by the other one as well."""
    is_short = _lanes_of_short(x, dims) is not None
    wide = (
        statistics_dtype(x.dtype, x.device) if is_short else x.dtype
    )  # a running mean does not overflow as a sum does
    mean = cast(torch.mean(cast(x, wide), dims, keepdim=True), x.dtype)
    variance = variance_around(mean, x, dims, keepdim=True)
    rstd = torch.rsqrt(torch.where(_is_lost(x, dims, variance, mean), math.nan, variance + eps))
    return mean, rstd, torch.where(torch.isnan(variance), math.nan, mean) if is_short else mean


def variance_around(mean: Tensor, x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
    """The mean square of what `x` is away from a mean that broadcasts, in the dtype of both: `torch.var` has one of its own."""
    away = x - mean
    return torch.mean(away * away, dims, keepdim=keepdim)


def _is_lost(x: Tensor, dims: list[int], variance: Tensor, mean: Tensor) -> Tensor:
    """Where squares are beyond the largest number, and eager's variance ends in NaN instead of infinity.

    It adds up what its lanes have found: of no count times an infinite square of a mean comes NaN. Rows of less than one vector
    meet empty lanes in the end, whole ones begin with one. In longer rows any such square counts as lost.
    """
    lanes = _lanes_of_short(x, dims)
    if lanes is None:
        return torch.isinf(variance + mean * mean)
    length = math.prod(x.shape[d] for d in dims)
    is_lost = torch.isinf(torch.amax(x, dims, keepdim=True) - torch.amin(x, dims, keepdim=True))
    if length > lanes:
        return is_lost
    first = mean
    if length == lanes:
        first = x
        for dim in dims:
            first = first.narrow(dim, 0, 1)
    return is_lost | torch.isinf(first * first)


def _lanes_of_short(x: Tensor, dims: list[int]) -> int | None:
    """How many numbers eager's vectors have, if a row is shorter than two of them."""
    lanes = _LANE_BYTES // x.element_size()
    length = math.prod(x.shape[d] for d in dims)
    return lanes if x.device.type == "cpu" and type(length) is int and length < 2 * lanes else None
