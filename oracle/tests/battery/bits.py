"""Spoilings of single values by their bits, in every float dtype: a step up, low bits cleared, truncation."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(value: Tensor) -> Tensor:
    """The bits of floats as integers of the same width: neighbours in magnitude differ by one."""
    return value.contiguous().view(_INTEGERS[value.element_size()])


def moved(value: Tensor, steps: int) -> Tensor:
    """Each element `steps` units of the last place away from zero. Zeros, NaN, infinities and the last finite ones stay."""
    result = (bits_of(value) + steps).view(value.dtype)
    wide, other = value.to(torch.float64), result.to(torch.float64)
    stays = (wide == 0) | ~torch.isfinite(wide) | ~torch.isfinite(other) | ((wide < 0) != (other < 0))
    return torch.where(stays, wide, other).to(value.dtype)


def low_bits_cleared(value: Tensor, count: int) -> Tensor:
    bits = bits_of(value)
    return ((bits >> count) << count).view(value.dtype) if count else value


def truncated(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """`wide` in a narrower dtype, rounded towards zero."""
    nearest = wide.to(dtype)
    return torch.where(nearest.to(wide.dtype).abs() > wide.abs(), moved(nearest, -1), nearest)


def unit_of(value: Tensor) -> Tensor:
    """A unit of the last place of each element, in float64; of zero, that of the smallest normal number."""
    tiny = torch.finfo(value.dtype).tiny
    wide = value.to(torch.float64).abs().clamp(min=tiny)
    wide = torch.where(torch.isfinite(wide), wide, tiny)
    return torch.exp2(torch.floor(torch.log2(wide))) * torch.finfo(value.dtype).eps
