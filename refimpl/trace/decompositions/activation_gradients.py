"""Decompositions of backward ops of activation functions: the tangent times the derivative.

Counterpart: torch/_decomp/decompositions.py, *_backward of activations
Differs: derivatives are derived anew from the activation's definition; at kinks they are the kernels'.
"""

from __future__ import annotations

import math

import torch

from refimpl.trace.decompositions.activations import logit_limits
from refimpl.trace.decompositions.device_numerics import follows_cpu
from refimpl.trace.decompositions.layouts import in_layout_of, row_major
from refimpl.trace.decompositions.promotion import (
    FLOATS_AND_COMPLEX,
    REALS,
    cast,
    computation_dtype,
    pointwise,
)
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.dtypes import common_dtype

Tensor = torch.Tensor

# Eager's kernel has this constant in float32 for every dtype.
_SIXTH = float(torch.tensor(1 / 6, dtype=torch.float32, device="cpu"))


@pointwise(aten.sigmoid_backward.default, accepts=FLOATS_AND_COMPLEX)
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    derivative = y * (1 - y)
    return grad * (torch.conj(derivative).resolve_conj() if y.is_complex() else derivative)


@pointwise(aten.tanh_backward.default, accepts=FLOATS_AND_COMPLEX)
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    derivative = (1 - y) * (1 + y)
    return grad * (torch.conj(derivative).resolve_conj() if y.is_complex() else derivative)


@pointwise(aten.silu_backward.default, accepts=FLOATS_AND_COMPLEX)
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    if x.is_complex():
        return NotImplemented
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@pointwise(aten.mish_backward.default, result_of=1)
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    t = torch.tanh(torch.log1p(torch.exp(x)))
    return grad * (t + x * torch.sigmoid(x) * (1 - t * t))


@pointwise(aten.elu_backward.default)
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Tensor:
    if is_result:
        negative = input_scale * (self_or_result + alpha * scale)
    else:
        negative = input_scale * alpha * scale * torch.exp(self_or_result * input_scale)
    return torch.where(self_or_result <= 0, grad * negative, grad * scale)


@pointwise(aten.leaky_relu_backward.default)
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, self_is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * negative_slope)


@pointwise(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    if training and upper - lower > 1e-6:
        return noise * grad  # `noise` holds the slopes that were drawn
    return torch.where(x > 0, grad, grad * ((lower + upper) / 2))


@pointwise(aten._prelu_kernel_backward.default)
def prelu_kernel_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    is_positive = x > 0
    return torch.where(is_positive, grad, weight * grad), torch.where(is_positive, 0, x * grad)


@pointwise(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Tensor, x: Tensor, min_val: float, max_val: float) -> Tensor:
    return torch.where((x <= min_val) | (x >= max_val), 0, grad)


@pointwise(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad * _SIXTH, 0)


@pointwise(aten.hardswish_backward.default)
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@pointwise(aten.hardshrink_backward.default, aten.softshrink_backward.default, rounds=(2,))
def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0, grad)


@pointwise(aten.softplus_backward.default)
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = x * beta
    e = torch.exp(scaled)
    return torch.where(scaled > threshold, grad, grad * e / (e + 1))


@pointwise(aten.threshold_backward.default, accepts=REALS)
def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return torch.where(x <= threshold, 0, grad)


@pointwise(aten.gelu_backward.default)
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        # y = x/2 (1 + tanh u),  u = c (x + k x^3):  y' = (1 + tanh u)/2 + x/2 (1 - tanh^2 u) u'
        c, k = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(c * (x + k * x * x * x))
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (c * (1 + 3 * k * x * x)))
    # y = x Phi(x):  y' = Phi(x) + x phi(x)
    cumulative = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (cumulative + x * density)


@rule(aten.glu_backward.default)
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    dtype = computation_dtype(x.dtype)
    grad = cast(grad, dtype)
    half, z = x.shape[dim] // 2, cast(x, dtype)
    value, gate = torch.narrow(z, dim, 0, half), torch.narrow(z, dim, half, half)
    s = torch.sigmoid(gate)
    return row_major(cast(torch.cat([grad * s, grad * (s * (1 - s)) * value], dim), x.dtype))


@pointwise(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """d/dx log sigmoid(x) = sigmoid(-x), from exp(-|x|), which only the CPU keeps in `buffer`."""
    small = buffer if x.device.type == "cpu" else torch.exp(-torch.abs(x))
    fraction = small / (1 + small)
    return grad * torch.where(x < 0, 1 - fraction, fraction)


@rule(aten.logit_backward.default)
def logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    dtype = common_dtype(grad, x)
    if not dtype.is_floating_point:
        return NotImplemented
    inner = dtype if follows_cpu(grad.device) else computation_dtype(dtype)
    limits = None if eps is None else logit_limits(eps, dtype)
    out = _logit_gradient(cast(cast(grad, dtype), inner), cast(cast(x, dtype), inner), limits)
    return in_layout_of(aten.logit_backward.default, cast(out, dtype), (grad, x, eps))


def _logit_gradient(grad: Tensor, x: Tensor, limits: tuple[float, float] | None) -> Tensor:
    """The derivative at 0 and -0 is +inf. NaN gives NaN, as in eager's scalar loop."""
    derivative = torch.where(x == 0, grad * math.inf, grad / (x * (1 - x)))
    if limits is None:
        return torch.where((x >= 0) & (x <= 1), derivative, math.nan)
    return torch.where((x < limits[0]) | (x > limits[1]), 0, derivative)


def _of_gradient(grad: Tensor, input_dtype: torch.dtype) -> torch.dtype:
    """The dtype of a softmax gradient: CPU kernels return the dtype of `grad`, others the input's."""
    return grad.dtype if grad.device.type == "cpu" else input_dtype


@rule(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    inner, dtype = computation_dtype(y.dtype), _of_gradient(grad, input_dtype)
    grad, y = row_major(cast(grad, inner)), row_major(cast(y, inner))
    return cast(y * (grad - torch.sum(grad * y, dim, keepdim=True)), dtype)


@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    inner, dtype = computation_dtype(y.dtype), _of_gradient(grad, input_dtype)
    grad, y = row_major(cast(grad, inner)), row_major(cast(y, inner))
    # addcmul rounds once, as eager does: the two terms may cancel.
    return cast(torch.addcmul(grad, torch.exp(y), torch.sum(grad, dim, keepdim=True), value=-1), dtype)
