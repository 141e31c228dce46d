"""Decompositions of activation functions.

Comparisons are written so that NaN, which compares false with everything, takes the same branch as in eager.

Counterpart: torch/_decomp/decompositions.py and torch/_refs/nn/functional/__init__.py, activations
Differs: each rule is the textbook formula; softmax and log_softmax are decomposed, which are core upstream.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.layouts import in_layout_of, row_major
from refimpl.trace.decompositions.promotion import (
    FLOATS_AND_COMPLEX,
    REALS,
    cast,
    computation_dtype,
    kind_of,
    pointwise,
)
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.dtypes import rounded_number
from refimpl.trace.refusals import number_fits

Tensor = torch.Tensor


@pointwise(aten.silu.default, accepts=FLOATS_AND_COMPLEX)
def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@pointwise(aten.mish.default)
def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@pointwise(aten.elu.default)
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x < 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale)


@pointwise(aten.celu.default)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if alpha == 0:
        return NotImplemented  # eager raises
    return torch.where(x < 0, torch.expm1(x * (1 / alpha)) * alpha, x)


@pointwise(aten.leaky_relu.default)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * negative_slope)


@pointwise(aten.rrelu_with_noise.default)
def rrelu_with_noise(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    if training:
        return NotImplemented  # draws random numbers
    return torch.where(x > 0, x, x * ((lower + upper) / 2))


@pointwise(aten._prelu_kernel.default)
def prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


@pointwise(aten.hardtanh.default)  # integers are left to the op, which treats them differently
def hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val)


@pointwise(aten.hardsigmoid.default)
def hardsigmoid(x: Tensor) -> Tensor:
    return torch.clamp(x + 3, 0, 6) / 6


@pointwise(aten.hardswish.default)
def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


@pointwise(aten.hardshrink.default, rounds=(1,))
def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, x)


@pointwise(aten.softshrink.default)
def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Between the limits the result is x * 0, as in eager: a zero with the sign of x, and NaN for NaN."""
    if not 0 <= lambd < math.inf:
        return NotImplemented  # eager raises
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


@pointwise(aten.softplus.default)
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled)) / beta)


@pointwise(aten.threshold.default, accepts=REALS)
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    if not x.is_floating_point():
        threshold, value = int(threshold), int(value)
    return torch.where(x <= threshold, value, x)


@pointwise(aten.gelu.default)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))
    return x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))


@pointwise(aten.glu.default)
def glu(x: Tensor, dim: int = -1) -> Tensor:
    if x.ndim == 0 or x.shape[dim] % 2 != 0:
        return NotImplemented  # eager raises
    half = x.shape[dim] // 2
    value, gate = torch.narrow(x, dim, 0, half), torch.narrow(x, dim, half, half)
    return value * torch.sigmoid(gate)


@pointwise(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Tensor) -> Any:
    """The second result is the buffer for the CPU's backward kernel; it is empty on other devices."""
    x = row_major(x)
    small = torch.exp(-torch.abs(x))
    kept = small if x.device.type == "cpu" else x.new_zeros((0,))
    return torch.clamp(x, max=0) - torch.log1p(small), kept


def logit_limits(eps: float, dtype: torch.dtype) -> tuple[float, float]:
    """The limits eps and 1 - eps, rounded to the operand's dtype: in a half dtype the upper one may be 1."""
    low = rounded_number(eps, dtype)
    return low, rounded_number(1 - low, dtype)


@rule(aten.logit.default)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """If the limits cross, the lower one wins. CPU kernels of half dtypes round each step."""
    if x.is_complex():
        return NotImplemented
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    if eps is not None and not number_fits(eps, dtype):
        return NotImplemented  # eager raises
    z = cast(x, dtype if follows_cpu(x.device) else computation_dtype(dtype))
    if eps is not None:
        low, high = logit_limits(eps, dtype)
        z = torch.where(z < low, low, torch.where(z > high, high, z))
    return in_layout_of(aten.logit.default, cast(torch.log(z / (1 - z)), dtype), (x,))


def _softmax_in(x: Tensor, dtype: torch.dtype, dim: int) -> tuple[Tensor, Tensor]:
    """x - max(x) and its exponential, contiguous as eager's result is."""
    x = row_major(cast(x, computation_dtype(dtype)))
    if x.numel() == 0:
        return x, torch.exp(x)
    shifted = x - torch.amax(x, dim, keepdim=True)
    return shifted, torch.exp(shifted)


def _softmax_result_dtype(x: Tensor, half_to_float: bool) -> torch.dtype:
    return torch.float32 if half_to_float else x.dtype


@rule(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if kind_of(x.dtype) != "float":
        return NotImplemented
    dtype = _softmax_result_dtype(x, half_to_float)
    _, exponentials = _softmax_in(x, dtype, dim)
    return cast(exponentials / torch.sum(exponentials, dim, keepdim=True), dtype)


@rule(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if kind_of(x.dtype) != "float":
        return NotImplemented
    dtype = _softmax_result_dtype(x, half_to_float)
    shifted, exponentials = _softmax_in(x, dtype, dim)
    return cast(shifted - torch.log(torch.sum(exponentials, dim, keepdim=True)), dtype)


@rule(aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A row whose logits are all -inf gives zeros, not NaN."""
    out = torch.softmax(x, dim, dtype=dtype)
    is_masked = torch.all(x == -math.inf, dim, keepdim=True)
    return torch.where(is_masked, 0, out)
