"""ULP distance: the number of representable values between two floats of one dtype.

The bits of an IEEE float, read as sign and magnitude, are ordered like the floats. So the distance is the difference of the
magnitudes for equal signs, and their sum across zero. Supports every float and complex dtype of torch, the 8-bit ones included;
of a complex number the worse part counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oracle.dtypes import ARITHMETIC_INTEGERS

# Signed integers above one byte, since torch has no arithmetic on unsigned ones.
_INTEGER_OF_WIDTH = {
    dtype.itemsize: dtype for dtype in ARITHMETIC_INTEGERS if dtype.itemsize > 1 or not dtype.is_signed
}

CHUNK = 1 << 20  # elements widened at a time: bounds the memory of a comparison, whatever the size of the tensors


def bits_of(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, in a view with the same strides; complex tensors get a last dimension of 2.

    Dtypes without arithmetic (packed float4, bits8 ...) become bytes.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.view(_INTEGER_OF_WIDTH[tensor.element_size()])


def ulp_distance(left: Tensor, right: Tensor) -> Tensor:
    """ULP distance of each element of two tensors of one float dtype and shape, in float64.

    Equal values, +0.0 and -0.0, and two NaN are 0 apart. A NaN is infinitely far from a number. An infinity is one step beyond
    the largest finite value.
    """
    if left.dtype != right.dtype or not (left.is_floating_point() or left.is_complex()):
        raise TypeError(f"ULP distance of {left.dtype} and {right.dtype}, but should be one float dtype")
    if left.is_complex():
        parts = ulp_distance(torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj()))
        return parts.amax(-1)
    width = left.element_size()
    left_bits = bits_of(left).to(torch.int64)
    right_bits = bits_of(right).to(torch.int64)
    if left.dtype is torch.float8_e8m0fnu:  # has an exponent only, no sign and no zero
        distance = (left_bits - right_bits).abs().to(torch.float64)
    else:
        largest = (1 << (8 * width - 1)) - 1
        left_magnitude, right_magnitude = left_bits & largest, right_bits & largest
        same_sign = (left_bits & ~largest) == (right_bits & ~largest)
        # In float64, since the sum of two magnitudes of float64 can overflow int64.
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
    """float8 in float32, which holds all its values: float8 has no isnan and isfinite."""
    return tensor.to(torch.float32) if tensor.element_size() == 1 else tensor


def _is_nan(tensor: Tensor) -> Tensor:
    return torch.isnan(_widened(tensor))


def _is_finite(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    return torch.isfinite(_widened(tensor))
