"""Decompositions of elementwise ops that are not activations.

Counterpart: torch/_refs/__init__.py and torch/_refs/special/__init__.py, elementwise ops; torch/_decomp/decompositions.py
Differs: special functions (lgamma, digamma, i0, erfc, ...) have no rules: in simpler ops they would lose accuracy.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from refimpl._torch import has_composite_kernel
from refimpl.trace.decompositions.device_numerics import fuses_products
from refimpl.trace.decompositions.layouts import in_layout_of, row_major
from refimpl.trace.decompositions.promotion import (
    ANY,
    COMPLEX,
    FLOATS_AND_COMPLEX,
    NUMBERS,
    REALS,
    REALS_AND_BOOL,
    cast,
    common_dtype,
    computation_dtype,
    kind_of,
    pointwise,
)
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.dtypes import rounded_number

Tensor = torch.Tensor
INF = math.inf

# 2**400 times any float32 overflows float32, 2**-400 times any underflows; float64 holds both products.
_MAX_EXPONENT = 400


@pointwise(aten.addcmul.default, accepts=NUMBERS)
def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a * b if value == 1 else value * a * b)


@pointwise(aten.addcdiv.default, accepts=FLOATS_AND_COMPLEX)
def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a if value == 1 else value * a) / b


@pointwise(aten.lerp.Scalar, aten.lerp.Tensor, accepts=FLOATS_AND_COMPLEX)
def lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """Computed from the nearer end, so that a weight of 1 returns `end` exactly."""
    difference = end - start
    if isinstance(weight, torch.Tensor):
        near = start + weight * difference
        return torch.where(torch.abs(weight) < 0.5, near, _from_end(end, weight - 1, difference))
    return start + weight * difference if abs(weight) < 0.5 else _from_end(end, weight - 1, difference)


def _from_end(end: Tensor, factor: Any, difference: Tensor) -> Tensor:
    """end + factor * difference. If eager's kernel uses FMA, a product that overflows on its own does not decide the sum."""
    product = factor * difference
    if end.is_complex() or not (isinstance(factor, torch.Tensor) or abs(factor) > 1):
        return end + product
    if not fuses_products(end.dtype, end.device):
        return end + product
    halves = 0.5 * end + factor * (0.5 * difference)
    return torch.where(torch.isinf(product), 2 * halves, end + product)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(x: Tensor, other: Any, alpha: float = 1) -> Tensor:
    """`sub` with swapped operands, which rounds numbers and alpha to half dtypes as `rsub` does."""
    return aten.sub.Tensor(other, x, alpha=alpha)  # a number minus a tensor would call rsub again


@pointwise(
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Other,
    aten.xlogy.Scalar_Self,
    accepts=REALS_AND_BOOL,
    scalars=(0, 1),
    integers_become_floats=True,
)
def xlogy(x: Any, y: Any) -> Tensor:
    """x log y, and 0 where x is 0, unless y is NaN."""
    return _x_times(x, y, math.log, torch.log)


@pointwise(
    aten.special_xlog1py.default,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
    accepts=REALS_AND_BOOL,
    scalars=(0, 1),
    integers_become_floats=True,
)
def xlog1py(x: Any, y: Any) -> Tensor:
    return _x_times(x, y, math.log1p, torch.log1p)


def _x_times(x: Any, y: Any, on_number: Any, on_tensor: Any) -> Tensor:
    if not isinstance(y, torch.Tensor):
        y = torch.full((), y, dtype=x.dtype, device=x.device)
    if not isinstance(x, torch.Tensor):
        x = torch.full((), x, dtype=y.dtype, device=y.device)
    return torch.where(torch.isnan(y), math.nan, torch.where(x == 0, 0, x * on_tensor(y)))


@pointwise(aten.special_entr.default, accepts=REALS_AND_BOOL, integers_become_floats=True)
def entr(x: Tensor) -> Tensor:
    out = torch.where(x > 0, -x * torch.log(x), torch.where(x == 0, 0, -INF))
    return torch.where(torch.isnan(x), x, out)


@pointwise(aten.special_log_ndtr.default, accepts=REALS_AND_BOOL, integers_become_floats=True)
def log_ndtr(x: Tensor) -> Tensor:
    """Left of -1 computed by erfcx, which does not underflow there."""
    t = x * math.sqrt(0.5)
    left = torch.log(torch.special.erfcx(-t) / 2) - t * t
    return torch.where(x < -1, left, torch.log1p(-torch.erfc(t) / 2))


@pointwise(aten.sinc.default, accepts=ANY, integers_become_floats=True)
def sinc(x: Tensor) -> Tensor:
    y = math.pi * x
    return torch.where(x == 0, 1, torch.sin(y) / y)


@pointwise(aten.sgn.default, accepts=ANY)
def sgn(x: Tensor) -> Tensor:
    if not x.is_complex():
        return torch.sign(x)
    size = torch.abs(x)
    return torch.where(size == 0, 0, x / size)


@rule(aten.heaviside.default)
def heaviside(x: Tensor, values: Tensor) -> Tensor:
    if x.dtype is not values.dtype or x.is_complex():
        return NotImplemented  # eager raises
    return in_layout_of(aten.heaviside.default, torch.where(x == 0, values, cast(x > 0, x.dtype)), (x, values))


@rule(aten.nan_to_num.default)
def nan_to_num(x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    kind = kind_of(x.dtype)
    if kind == COMPLEX:
        parts = [nan_to_num(part, nan, posinf, neginf) for part in (torch.real(x), torch.imag(x))]
        return torch.complex(parts[0], parts[1])
    if kind != "float":
        return aten.clone.default(x)
    limits = torch.finfo(x.dtype)
    finite = torch.where(x == -INF, limits.min if neginf is None else rounded_number(neginf, x.dtype), x)
    finite = torch.where(x == INF, limits.max if posinf is None else rounded_number(posinf, x.dtype), finite)
    return torch.where(torch.isnan(x), 0.0 if nan is None else rounded_number(nan, x.dtype), finite)


@pointwise(aten.frac.default)
def frac(x: Tensor) -> Tensor:
    return x - torch.trunc(x)


@pointwise(aten.deg2rad.default, accepts=REALS_AND_BOOL, integers_become_floats=True)
def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


@pointwise(aten.rad2deg.default, accepts=REALS_AND_BOOL, integers_become_floats=True)
def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


@pointwise(aten.isneginf.default, accepts=REALS_AND_BOOL, result=torch.bool)
def isneginf(x: Tensor) -> Tensor:
    return x == -INF if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@pointwise(aten.isposinf.default, accepts=REALS_AND_BOOL, result=torch.bool)
def isposinf(x: Tensor) -> Tensor:
    return x == INF if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


@pointwise(aten.logaddexp.default)
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    larger = torch.maximum(x, y)
    both_infinite = torch.isinf(x) & (x == y)
    return torch.where(both_infinite, x, larger + torch.log1p(torch.exp(-torch.abs(x - y))))


@pointwise(aten.logaddexp2.default)
def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    larger = torch.maximum(x, y)
    both_infinite = torch.isinf(x) & (x == y)
    rest = torch.log1p(torch.exp2(-torch.abs(x - y))) * (1 / math.log(2))
    return torch.where(both_infinite, x, larger + rest)


@pointwise(aten.exp2.default, accepts=ANY, integers_become_floats=True)
def exp2(x: Tensor) -> Tensor:
    return torch.pow(2, x)


@pointwise(aten.hypot.default)
def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Scaled by the larger side, so that squares neither overflow nor underflow."""
    x, y = torch.abs(x), torch.abs(y)
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = torch.where(large == 0, 0, small / large)
    is_infinite = (x == INF) | (y == INF)
    return torch.where(is_infinite, INF, large * torch.sqrt(1 + ratio * ratio))


@pointwise(
    aten.copysign.Tensor,
    aten.copysign.Scalar,
    accepts=REALS_AND_BOOL,
    scalars=(1,),
    integers_become_floats=True,
)
def copysign(x: Tensor, other: Any) -> Tensor:
    size = torch.abs(x)
    if isinstance(other, torch.Tensor):
        is_negative = torch.signbit(other)
        return torch.where(is_negative, -size, size)
    return -size if math.copysign(1, other) < 0 else size


@rule(aten.floor_divide.default)
def floor_divide(x: Tensor, other: Tensor) -> Tensor:
    return torch.div(x, other, rounding_mode="floor")


@rule(aten.floor_divide.Scalar)
def floor_divide_scalar(x: Tensor, other: float) -> Tensor:
    return torch.div(x, other, rounding_mode="floor")


@pointwise(aten.clamp_min.default, accepts=REALS, scalars=(1,))
def clamp_min(x: Tensor, min: float) -> Tensor:
    return torch.clamp(x, min=min)


@pointwise(aten.clamp_max.default, accepts=REALS, scalars=(1,))
def clamp_max(x: Tensor, max: float) -> Tensor:
    return torch.clamp(x, max=max)


@pointwise(aten.clamp_min.Tensor, accepts=REALS_AND_BOOL)
def clamp_min_tensor(x: Tensor, min: Tensor) -> Tensor:
    return torch.maximum(x, min)


@pointwise(aten.clamp_max.Tensor, accepts=REALS_AND_BOOL)
def clamp_max_tensor(x: Tensor, max: Tensor) -> Tensor:
    return torch.minimum(x, max)


@pointwise(aten.fmax.default, accepts=REALS_AND_BOOL)
def fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(y) | (x >= y), x, y) if x.is_floating_point() else torch.maximum(x, y)


@pointwise(aten.fmin.default, accepts=REALS_AND_BOOL)
def fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(y) | (x <= y), x, y) if x.is_floating_point() else torch.minimum(x, y)


@rule(aten.ldexp.Tensor)
def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """Since torch 2.13 an integer `other` is the int32 exponent of C's ldexp, and the product is rounded once."""
    if kind_of(x.dtype) == "float" and kind_of(other.dtype) == "int" and not has_composite_kernel(aten.ldexp.Tensor):
        if x.dtype == torch.float64:
            return NotImplemented
        power = torch.pow(
            2.0, cast(torch.clamp(cast(other, torch.int32), -_MAX_EXPONENT, _MAX_EXPONENT), torch.float64)
        )
        return in_layout_of(aten.ldexp.Tensor, cast(cast(x, torch.float64) * power, x.dtype), (x, other))
    if kind_of(x.dtype) == "float" and kind_of(other.dtype) == "bool" and not has_composite_kernel(aten.ldexp.Tensor):
        return NotImplemented  # eager raises
    dtype = torch.result_type(x, other)
    dtype = dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
    return (x * torch.pow(2.0, other)).to(dtype)  # pow of an integer tensor is float32, also next to a half x


@pointwise(aten.mvlgamma.default, accepts=REALS, integers_become_floats=True)
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """log of pi^(p(p-1)/4) prod Gamma(x - j/2), j < p."""
    halves = torch.arange(p, dtype=x.dtype, device=x.device) * -0.5
    return torch.sum(torch.lgamma(x.unsqueeze(-1) + halves), -1) + p * (p - 1) / 4 * math.log(math.pi)


@rule(aten.round.decimals)
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    if kind_of(x.dtype) != "float":
        return NotImplemented
    z = cast(x, computation_dtype(x.dtype))
    power = 10.0 ** abs(decimals)
    out = torch.round(z * power) / power if decimals >= 0 else torch.round(z / power) * power
    return cast(out, x.dtype)


@rule(aten.angle.default)
def angle(x: Tensor) -> Tensor:
    if x.is_complex():
        return row_major(torch.atan2(torch.imag(x), torch.real(x)))
    z = x if x.is_floating_point() else cast(x, torch.get_default_dtype())
    return torch.where(torch.isnan(z), z, torch.where(z < 0, math.pi, torch.zeros_like(z)))


@rule(aten.polar.default)
def polar(size: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(size * torch.cos(angle), size * torch.sin(angle))


@rule(aten.bitwise_and.Scalar_Tensor)
def bitwise_and_scalar_tensor(x: int, other: Tensor) -> Tensor:
    return torch.bitwise_and(other, x)


@rule(aten.bitwise_or.Scalar_Tensor)
def bitwise_or_scalar_tensor(x: int, other: Tensor) -> Tensor:
    return torch.bitwise_or(other, x)


@rule(aten.bitwise_xor.Scalar_Tensor)
def bitwise_xor_scalar_tensor(x: int, other: Tensor) -> Tensor:
    return torch.bitwise_xor(other, x)


@rule(aten.remainder.Scalar_Tensor)
def remainder_scalar_tensor(x: float, other: Tensor) -> Tensor:
    dtype = common_dtype(x, other)
    x = rounded_number(x, dtype) if dtype.is_floating_point else x
    return torch.remainder(aten.scalar_tensor.default(x, device=other.device, dtype=dtype), other)
