"""Decompositions of normalisation layers and their backward ops, of dropout's backward, renorm and weight norm.

Shapes are written (N, C, *) for samples and channels. Statistics are computed in float32 for half-precision inputs, and for
float32 with two exceptions, `_mean_dtype` and `_variance_dtype`.

Counterpart: torch/_decomp/decompositions.py, native_*_norm, native_*_norm_backward, *batch_norm*
Differs: one gradient formula for all of them: with y = (x - mean) * rstd over a set of n elements and tangent g,
dx = rstd * (g - mean(g) - y * mean(g * y)). The layer and group norms themselves are decomposed as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.device_numerics import follows_cpu, fuses_products
from refimpl.trace.decompositions.layouts import laid_out_as, row_major
from refimpl.trace.decompositions.promotion import cast, computation_dtype, statistics_dtype
from refimpl.trace.decompositions.registry import aten, rule
from refimpl.trace.eager_facts import is_known, row_vector_bytes

Tensor = torch.Tensor


def _gradient_of_normalised(g: Tensor, y: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    return rstd * (g - torch.mean(g, dims, keepdim=True) - y * torch.mean(g * y, dims, keepdim=True))


def _gradient_of_rows(g: Tensor, z: Tensor, mean: Tensor, rstd: Tensor, dims: list[int]) -> Tensor:
    """The input gradient of layer and group norms; `mean` and `rstd` broadcast. For an infinite variance (rstd is 0), CPU kernels
    return 0, or NaN if a sum overflows, because they compute slope * x + constant for each row."""
    found = _gradient_of_normalised(g, (z - mean) * rstd, rstd, dims)
    if not follows_cpu(z.device):
        return found
    count = math.prod(z.shape[d] for d in dims)
    total, product = torch.sum(g, dims, keepdim=True), torch.sum(g * z, dims, keepdim=True)
    if fuses_products(z.dtype, z.device):  # with FMA only the difference overflows, not the products
        difference = (total * (mean / 4) - product / 4) * 4
    else:
        difference = total * mean - product
    slope = difference * rstd * rstd * rstd / count
    constant = -slope * mean - total * rstd / count
    return torch.where(rstd == 0, rstd * g + slope * z + constant, found)


def _as_opmath(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else cast(x, dtype)


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _per_channel(values: Tensor, ndim: int) -> Tensor:
    """(C,) to (1, C, 1, ...)."""
    return values.reshape([1, -1] + [1] * (ndim - 2))


# ---------------------------------------------------------------------------------------------------------- layer norm


@rule(aten.native_layer_norm.default)
def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    dtype = computation_dtype(x.dtype)
    z = row_major(cast(x, dtype))
    mean, rstd, returned_mean = _mean_and_rstd(z, dims, eps, x.dtype)
    y = _scaled((z - mean) * rstd, _as_opmath(weight, dtype), _as_opmath(bias, dtype))
    if weight is not None and bias is None and follows_cpu(x.device):
        y = y + 0  # no negative zeros from a weight of zero, as in eager
    kept = _statistics_dtype(x, weight, bias)
    return cast(y, x.dtype), cast(returned_mean, kept), cast(rstd, kept)


def _statistics_dtype(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """The dtype of the returned mean and rstd: on a CPU that of the parameters, or of the input without any; else float32 for
    half inputs."""
    if x.device.type != "cpu":
        return computation_dtype(x.dtype)
    dtypes = [p.dtype for p in parameters if p is not None]
    return dtypes[0] if dtypes else x.dtype


@rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    outer, inner = _split_dims(x, normalized_shape)
    dtype = computation_dtype(x.dtype)
    g, z = row_major(cast(grad, dtype)), row_major(cast(x, dtype))
    rstd = cast(rstd, dtype)
    y = (z - cast(mean, dtype)) * rstd
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * cast(weight, dtype)
        grad_x = cast(_gradient_of_rows(scaled, z, cast(mean, dtype), rstd, inner), x.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = cast(_sum_over(g * y, outer), weight.dtype)
    if output_mask[2] and bias is not None:
        grad_bias = cast(_sum_over(g, outer), bias.dtype)
    return grad_x, grad_weight, grad_bias


def _split_dims(x: Tensor, normalized_shape: Sequence[int]) -> tuple[list[int], list[int]]:
    first = x.ndim - len(normalized_shape)
    return list(range(first)), list(range(first, x.ndim))


def _sum_over(x: Tensor, dims: list[int]) -> Tensor:
    """The sum over `dims`; with no dims, x + 0, because aten would sum over all, and a sum is never -0."""
    return torch.sum(x, dims) if dims else x + 0


@rule(aten._fused_rms_norm.default)
def fused_rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    _, inner = _split_dims(x, normalized_shape)
    dtype = computation_dtype(x.dtype)
    if dtype.is_complex or x.numel() == 0:
        return NotImplemented
    z = laid_out_as(cast(x, dtype), x)
    small = torch.finfo(dtype).eps if eps is None else eps
    rstd = torch.rsqrt(torch.mean(z * z, inner, keepdim=True) + small)
    y = z * rstd
    y = y if weight is None else y * cast(weight, dtype)
    return cast(y, x.dtype), cast(rstd, dtype)


@rule(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    outer, inner = _split_dims(x, normalized_shape)
    dtype = computation_dtype(x.dtype)
    g, z, rstd = cast(grad, dtype), cast(x, dtype), cast(rstd, dtype)
    y = z * rstd
    grad_x = grad_weight = None
    if output_mask[0]:
        scaled = g if weight is None else g * cast(weight, dtype)
        grad_x = cast(rstd * (scaled - y * torch.mean(scaled * y, inner, keepdim=True)), x.dtype)
    if output_mask[1] and weight is not None:
        grad_weight = cast(_sum_over(g * y, outer), weight.dtype)
    return grad_x, grad_weight


# ---------------------------------------------------------------------------------------------------------- group norm


@rule(aten.native_group_norm.default)
def native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    dtype = computation_dtype(x.dtype)
    z = cast(x, dtype).reshape(N, group, -1)
    mean, rstd, returned_mean = _mean_and_rstd(z, [2], eps, x.dtype)
    y = (z - mean) * rstd
    if weight is not None:  # eager computes x * factor - mean * factor, which is NaN for an infinite factor
        scale = cast(weight, dtype).reshape(1, group, C // group, 1)
        z, y = z.reshape(N, group, C // group, -1), y.reshape(N, group, C // group, -1)
        factor = rstd.unsqueeze(3) * scale
        y = torch.where(torch.isinf(factor), z * factor - mean.unsqueeze(3) * factor, y * scale)
    y = y.reshape(x.shape)
    if bias is not None:
        y = y + _per_channel(cast(bias, dtype), x.ndim)
    elif weight is not None and follows_cpu(x.device):
        y = y + 0
    y = cast(y, x.dtype)
    if x.device.type == "cpu":
        y = laid_out_as(y, x)
    kept = _statistics_dtype(x, weight, bias)
    return y, cast(returned_mean.squeeze(2), kept), cast(rstd.squeeze(2), kept)


@rule(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return NotImplemented
    if _has_rare_rows(x.device, C // group * HxW, x.dtype):
        return NotImplemented  # eager subtracts products that may overflow to NaN if the deviation is 0
    dtype = computation_dtype(x.dtype)
    shape = (N, group, C // group, -1)
    g, z = cast(grad, dtype).reshape(shape), cast(x, dtype).reshape(shape)
    r = cast(rstd, dtype).reshape(N, group, 1, 1)
    y = (z - cast(mean, dtype).reshape(N, group, 1, 1)) * r
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = g if weight is None else g * cast(weight, dtype).reshape(1, group, C // group, 1)
        centre = cast(mean, dtype).reshape(N, group, 1, 1)
        grad_x = cast(_gradient_of_rows(scaled, z, centre, r, [2, 3]), x.dtype).reshape(x.shape)
        grad_x = laid_out_as(grad_x, x) if x.device.type == "cpu" else row_major(grad_x)
    parameter_dtype = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = cast(torch.sum(g * y, [0, 3]).reshape(C), parameter_dtype)
    if output_mask[2]:
        grad_bias = cast(torch.sum(g, [0, 3]).reshape(C), parameter_dtype)
    return grad_x, grad_weight, grad_bias


# ---------------------------------------------------------------------------------------------------------- batch norm


def _all_but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.ndim) if d != 1]


def _batch_normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor) -> Tensor:
    dtype = computation_dtype(x.dtype)
    scale, shift = _as_opmath(weight, dtype), _as_opmath(bias, dtype)
    if follows_cpu(x.device) and _has_image_order(x):  # its kernel computes no x - mean, which could overflow
        factor = rstd if scale is None else rstd * scale
        constant = (0 if shift is None else shift) - mean * factor
        y = cast(x, dtype) * _per_channel(factor, x.ndim) + _per_channel(constant, x.ndim)
    else:
        y = (cast(x, dtype) - _per_channel(mean, x.ndim)) * _per_channel(rstd, x.ndim)
        y = _scaled(y, *(None if p is None else _per_channel(p, x.ndim) for p in (scale, shift)))
        if scale is not None and shift is None:
            y = y + 0  # no negative zeros from a weight of zero, as in eager
    out = cast(y, x.dtype)
    return row_major(out) if follows_cpu(x.device) and x.is_contiguous() else laid_out_as(out, x)


def _has_image_order(x: Tensor) -> bool:
    """Whether the tensor is contiguous or channels last."""
    orders = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return any(x.is_contiguous(memory_format=order) for order in orders)


def _running(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """The exponential moving average, in the dtype of the buffer."""
    return cast((1 - momentum) * cast(old, new.dtype) + momentum * new, old.dtype)


def _mean_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a batch's mean: on a CPU float64 for contiguous float32 images of more than one pixel."""
    if x.dtype is torch.float32 and x.is_contiguous() and any(size != 1 for size in x.shape[2:]):
        return statistics_dtype(x.dtype, x.device)
    return computation_dtype(x.dtype)


def _variance_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a batch's variance: on a CPU float64 for float32 tensors that are neither contiguous nor channels last. These
    have kernels that sum squares in float32."""
    if x.dtype is not torch.float32 or _has_image_order(x):
        return computation_dtype(x.dtype)
    return statistics_dtype(x.dtype, x.device)


def _batch_norm_by_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Output, mean and rstd of the batch, and the new running statistics."""
    dims = _all_but_channels(x)
    dtype, wide = computation_dtype(x.dtype), _variance_dtype(x)
    z = cast(x, dtype)
    mean = cast(torch.mean(cast(x, _mean_dtype(x)), dims), dtype)
    variance = _variance_around(_per_channel(cast(mean, wide), x.ndim), cast(z, wide), dims, keepdim=False)
    rstd = torch.rsqrt(variance + eps)
    if eps == 0:
        rstd = torch.where(variance == 0, 0, rstd)
    rstd = cast(rstd, dtype)
    out = _batch_normalised(x, weight, bias, mean, rstd)
    new_mean = None if running_mean is None else _running(running_mean, mean, momentum)
    new_var = None
    if running_var is not None:
        count = x.numel() // x.shape[1]
        new_var = _running(running_var, variance * (count / (count - 1)), momentum)
    return out, mean, rstd, new_mean, new_var


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The results of `native_batch_norm` followed by the new running statistics; NotImplemented if a batch has no variance."""
    if x.numel() == 0 or x.ndim < 2:
        return NotImplemented
    kept = _statistics_dtype(x, weight, bias, running_mean)
    if training:
        if running_var is not None and x.numel() // x.shape[1] == 1:
            return NotImplemented  # the unbiased variance of one value is undefined
        out, mean, rstd, new_mean, new_var = _batch_norm_by_batch(
            x, weight, bias, running_mean, running_var, momentum, eps
        )
        return out, cast(mean, kept), cast(rstd, kept), new_mean, new_var
    if running_mean is None or running_var is None:
        return NotImplemented
    dtype = computation_dtype(x.dtype)
    mean, rstd = cast(running_mean, dtype), torch.rsqrt(cast(running_var, dtype) + eps)
    out = _batch_normalised(x, weight, bias, mean, rstd)
    if x.device.type == "cpu":
        return out, x.new_zeros((0,), dtype=kept), x.new_zeros((0,), dtype=kept), running_mean, running_var
    return out, mean, rstd, running_mean, running_var


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Mutates the running statistics in training."""
    results = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if results is NotImplemented:
        return NotImplemented
    out, mean, rstd, new_mean, new_var = results
    if training and running_mean is not None:
        running_mean.copy_(new_mean)
    if training and running_var is not None:
        running_var.copy_(new_var)
    return out, mean, rstd


@rule(aten._native_batch_norm_legit.no_stats)
def native_batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    results = _batch_norm(x, weight, bias, None, None, training, momentum, eps)
    return results if results is NotImplemented else results[:3]


@rule(aten._native_batch_norm_legit_no_training.default)
def native_batch_norm_in_evaluation(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    results = _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return results if results is NotImplemented else results[:3]


@rule(aten._native_batch_norm_legit_functional.default)
def native_batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    results = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if results is NotImplemented or training:
        return results
    return *results[:3], aten.clone.default(running_mean), aten.clone.default(running_var)


@rule(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The fourth result, cuDNN's reserve for backward, is empty: cuDNN's backward has a rule as well, which does not need it."""
    results = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if results is NotImplemented:
        return NotImplemented
    saved = results[1:] if training else (weight.new_zeros((0,)), weight.new_zeros((0,)))
    return results[0], *saved, x.new_zeros((0,), dtype=torch.uint8)


@rule(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    eps: float,
    reserve: Tensor,
) -> Any:
    return native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, True, eps, (True, True, True)
    )


@rule(aten._batch_norm_with_update.default)
def batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """The fourth result, cuDNN's reserve for backward, is empty on other devices."""
    if x.device.type != "cpu":
        return NotImplemented
    results = native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return results if results is NotImplemented else (*results, x.new_zeros((0,), dtype=torch.uint8))


@rule(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    if x.device.type != "cpu":
        return NotImplemented
    results = _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    return results if results is NotImplemented else (*results[:3], x.new_zeros((0,), dtype=torch.uint8))


@rule(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    if x.numel() == 0 or x.ndim < 2:
        return NotImplemented
    of_channels = (weight, running_mean, running_var, save_mean, save_invstd)
    if x.device.type == "cpu" and any(p is not None and not p.is_contiguous() for p in of_channels):
        return NotImplemented  # eager's kernel ignores their strides
    dims = _all_but_channels(x)
    dtype = computation_dtype(x.dtype)
    if train and save_mean is not None and save_invstd is not None:
        mean, rstd = cast(save_mean, dtype), cast(save_invstd, dtype)
    elif not train and running_mean is not None and running_var is not None:
        mean, rstd = cast(running_mean, dtype), torch.rsqrt(cast(running_var, dtype) + eps)
    else:
        return NotImplemented
    g, z = cast(grad, dtype), cast(x, dtype)
    r = _per_channel(rstd, x.ndim)
    centred = z - _per_channel(mean, x.ndim)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        factor = r if weight is None else r * _per_channel(cast(weight, dtype), x.ndim)
        if train:
            slope = torch.mean(g * centred, dims, keepdim=True) * r * r
            grad_x = (g - torch.mean(g, dims, keepdim=True) - centred * slope) * factor
        else:
            grad_x = g * factor
        grad_x = laid_out_as(cast(grad_x, x.dtype), x)
    parameter_dtype = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        grad_weight = cast(torch.sum(g * centred, dims) * rstd, parameter_dtype)
    if output_mask[2]:
        grad_bias = cast(torch.sum(g, dims), parameter_dtype)
    return grad_x, grad_weight, grad_bias


@rule(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> Any:
    if x.device.type != "cpu":
        return NotImplemented
    return native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


# -------------------------------------------------------------------------------------------------------------- others


@rule(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    if mask.dtype is not torch.bool:
        return NotImplemented  # eager multiplies in the common dtype
    dtype = computation_dtype(grad.dtype)
    if not grad.is_floating_point():
        return grad * mask * scale
    return cast(cast(grad, dtype) * cast(mask, dtype) * scale, grad.dtype)


@rule(aten.renorm.default)
def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale each slice along `dim` whose p-norm exceeds `maxnorm` down to it; the factor is rounded to the tensor's dtype."""
    if x.ndim < 2 or not p > 0 or not maxnorm >= 0:
        return NotImplemented  # eager raises
    dtype = computation_dtype(x.dtype)
    z = cast(x, dtype)
    dims = [d for d in range(x.ndim) if d != dim % x.ndim]
    size = torch.linalg.vector_norm(z, p, dims, keepdim=True)
    factor = cast(cast(torch.where(size > maxnorm, maxnorm / (size + 1e-7), 1.0), x.dtype), dtype)
    return row_major(cast(z * factor, x.dtype))


def _norm_except(v: Tensor, dim: int) -> Tensor:
    dims = [d for d in range(v.ndim) if d != dim]
    return torch.sqrt(torch.sum(v * v, dims, keepdim=True))


@rule(aten._weight_norm_interface.default)
def weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    dtype = computation_dtype(v.dtype)
    z = row_major(cast(v, dtype))
    size = _norm_except(z, dim)
    kept = g.dtype if v.device.type != "cpu" or g.dtype not in (torch.bfloat16, torch.float16) else torch.float32
    return cast(z * (cast(g, dtype) / size), v.dtype), cast(size, kept)


@rule(aten._weight_norm_interface_backward.default)
def weight_norm_interface_backward(
    grad: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> Any:
    """w = v g/|v|:  dg = <dw, v>/|v|,  dv = g/|v| dw - v g/|v| dg/|v|."""
    dtype = computation_dtype(saved_v.dtype)
    dw, v, g, size = (cast(t, dtype) for t in (grad, saved_v, saved_g, saved_norms))
    dims = [d for d in range(v.ndim) if d != dim]
    projection = torch.sum(dw * v, dims, keepdim=True)
    dg = projection / size
    dv = g / size * dw - v * (g / size * dg / size)
    return cast(dv, saved_v.dtype), cast(dg, saved_g.dtype)


# ------------------------------------------------------------------------------------------------------ moments of rows

# Mean and 1/std of rows as eager's layer and group norm kernels compute them, infinities and NaN by overflow included.
#
# CPU kernels use Welford's algorithm (RowwiseMoments): each lane of a vector has a running mean and sum of squares, the last
# incomplete vector has one more pair, and the pairs are added up, that one first. Adding to an empty pair multiplies by its count
# of 0, which makes an infinity NaN.


def _mean_and_rstd(x: Tensor, dims: list[int], eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps) over the last dimensions `dims`, which are kept, and the mean that eager returns.

    The returned mean is NaN for a row with an infinite element; this is computed only for the rows of `_has_rare_rows`. `dtype`
    is that of the rows before they were cast to the computation dtype.
    """
    is_rare = _has_rare_rows(x.device, math.prod(x.shape[d] for d in dims), dtype)
    # A running mean does not overflow as a sum would.
    wide = statistics_dtype(x.dtype, x.device) if follows_cpu(x.device) else x.dtype
    mean = cast(torch.mean(cast(x, wide), dims, keepdim=True), x.dtype)
    variance = _variance_around(mean, x, dims, keepdim=True)
    if not follows_cpu(x.device):
        return mean, torch.rsqrt(torch.where(torch.isinf(variance + mean * mean), math.nan, variance) + eps), mean
    returned_mean = torch.where(torch.isnan(variance), math.nan, mean) if is_rare else mean
    for is_nan in _nan_rows(x, dims, mean, dtype):
        variance = torch.where(is_nan, math.nan, variance)
    return mean, torch.rsqrt(variance + eps), returned_mean


def _has_rare_rows(device: torch.device, length: int, dtype: torch.dtype) -> bool:
    """Whether the CPU kernel does not fill its vector registers on a row of this length: a row that is shorter than two
    registers, or whose last register is filled in part.

    Overflow is reproduced in more detail for such rows. A symbolic length records a guard.
    """
    vector = row_vector_bytes() // dtype.itemsize
    return follows_cpu(device) and is_known(length) and (length < 2 * vector or length % vector != 0)


def _variance_around(mean: Tensor, x: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
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
