"""ULP: how many representable values lie between two floats of one dtype.

The bits of an IEEE-like float, read as sign and magnitude, are ordered like the floats themselves. So the distance in units
of the last place is a difference of integers: between magnitudes for equal signs, their sum across zero.
Works for every float and complex dtype torch has, the 8 bit ones included; a complex number counts its worse part.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Read signed integers of the same width; torch has no arithmetic on the unsigned ones.
_INTEGER_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

CHUNK = 1 << 20  # elements widened at a time: bounds the memory of a comparison, whatever the size of the tensors


def bits_of(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, a view of the same strides; complex numbers get a last dimension of 2.

    Dtypes with no arithmetic of their own (packed float4, bits8 ...) come out as bytes.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.view(_INTEGER_OF_WIDTH[tensor.element_size()])


def ulp_distance(left: Tensor, right: Tensor) -> Tensor:
    """Distance of two tensors of one float dtype and shape, as float64 of that shape (the unit is eager's last place).

    Equal values are 0 apart, +0.0 and -0.0 too, and NaN from NaN; one NaN is infinitely far from every number.
    An infinity is one step beyond the largest finite value, as in the bits.
    """
    if left.dtype != right.dtype or not (left.is_floating_point() or left.is_complex()):
        raise TypeError(f"ULP distance of {left.dtype} and {right.dtype}, but should be one float dtype")
    if left.is_complex():
        parts = ulp_distance(torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj()))
        return parts.amax(-1)
    width = left.element_size()
    left_bits = bits_of(left).to(torch.int64)
    right_bits = bits_of(right).to(torch.int64)
    if left.dtype is torch.float8_e8m0fnu:  # an exponent and nothing else: no sign, no zero
        distance = (left_bits - right_bits).abs().to(torch.float64)
    else:
        largest = (1 << (8 * width - 1)) - 1
        left_magnitude, right_magnitude = left_bits & largest, right_bits & largest
        same_sign = (left_bits & ~largest) == (right_bits & ~largest)
        # In float64 before the sum: across zero, two float64 magnitudes overflow int64.
        across = left_magnitude.to(torch.float64) + right_magnitude.to(torch.float64)
        distance = torch.where(same_sign, (left_magnitude - right_magnitude).abs().to(torch.float64), across)
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    distance = distance.masked_fill(left_nan != right_nan, float("inf"))
    return distance.masked_fill(left_nan & right_nan, 0.0)


def max_ulp(left: Tensor, right: Tensor) -> float:
    """The largest ULP distance over elements that are finite on both sides; 0.0 when there is none."""
    left, right = left.reshape(-1), right.reshape(-1)
    worst = 0.0
    for start in range(0, left.numel(), CHUNK):
        a, b = left[start : start + CHUNK], right[start : start + CHUNK]
        both_finite = _is_finite(a) & _is_finite(b)
        if bool(both_finite.any()):
            worst = max(worst, ulp_distance(a, b).masked_fill(~both_finite, 0.0).max().item())
    return worst


def _widened(tensor: Tensor) -> Tensor:
    """float8 has no isnan or isfinite; float32 holds all its values."""
    return tensor.to(torch.float32) if tensor.element_size() == 1 else tensor


def _is_nan(tensor: Tensor) -> Tensor:
    return torch.isnan(_widened(tensor))


def _is_finite(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    return torch.isfinite(_widened(tensor))
