"""Decompositions of losses and their backward ops.

`reduction` is aten's number: 0 none, 1 mean, 2 sum.

Counterpart: torch/_decomp/decompositions.py and torch/_refs/nn/functional/__init__.py, losses
Differs: half-precision values are reduced in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl.trace.decompositions.indexing import checked
from refimpl.trace.decompositions.layouts import row_major
from refimpl.trace.decompositions.promotion import (
    FLOAT,
    cast,
    computation_dtype,
    kind_of,
    pointwise,
)
from refimpl.trace.decompositions.registry import aten, rule

Tensor = torch.Tensor
NONE, MEAN, SUM = 0, 1, 2
# Eager's kernel has this constant in float32 for every dtype.
_LEAST_VARIANCE = float(torch.tensor(1e-12, dtype=torch.float32, device="cpu"))


def reduce_loss(loss: Tensor, reduction: int) -> Tensor:
    """The losses, or their mean or sum. The mean of an empty tensor is NaN."""
    if reduction == MEAN:
        return torch.mean(loss)
    return torch.sum(loss) if reduction == SUM else loss


def _per_loss(grad: Tensor, reduction: int, count: Any) -> Tensor:
    """The gradient of each of `count` losses before the reduction."""
    return grad / count if reduction == MEAN else grad


@pointwise(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    difference = x - target
    return reduce_loss(difference * difference, reduction)


@pointwise(aten.mse_loss_backward.default, result_of=1)
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    two = torch.full((), 2.0, dtype=x.dtype, device=x.device)
    return row_major(_per_loss(two, reduction, x.numel()) * (x - target) * grad)


@pointwise(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    if not beta >= 0:
        return NotImplemented  # eager raises
    distance = torch.abs(x - target)
    if beta == 0:
        return reduce_loss(distance, reduction)
    quadratic = distance * distance / beta * 0.5
    return reduce_loss(torch.where(distance < beta, quadratic, distance - 0.5 * beta), reduction)


@pointwise(aten.smooth_l1_loss_backward.default, result_of=1)
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = x - target
    grad = _per_loss(grad, reduction, x.numel())
    sign = torch.sign(difference)
    if beta == 0:
        return row_major(grad * sign)
    return row_major(grad * torch.where(torch.abs(difference) >= beta, sign, difference / beta))


@pointwise(aten.huber_loss.default, is_of_one_dtype=True)
def huber_loss(x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    if not delta > 0:
        return NotImplemented  # eager raises
    distance = torch.abs(x - target)
    loss = torch.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))
    return reduce_loss(loss, reduction)


@pointwise(aten.huber_loss_backward.default, rounds=(4,))
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    return row_major(_per_loss(grad, reduction, x.numel()) * torch.clamp(x - target, -delta, delta))


@pointwise(aten.soft_margin_loss.default, is_of_one_dtype=True)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    return reduce_loss(torch.log1p(torch.exp(-target * x)), reduction)


@pointwise(aten.soft_margin_loss_backward.default, result_of=1)
def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    z = torch.exp(-target * x)
    return -target * z / (1 + z) * _per_loss(grad, reduction, x.numel())


@pointwise(aten.binary_cross_entropy.default, is_of_one_dtype=True)
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """Logarithms are clamped to at least -100, so that the loss is finite."""
    yes = torch.clamp(torch.log(x), min=-100)
    no = torch.clamp(torch.log1p(-x), min=-100)
    loss = (target - 1) * no - target * yes
    return reduce_loss(loss if weight is None else loss * weight, reduction)


@pointwise(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    out = grad * (x - target) / torch.clamp((1 - x) * x, min=_LEAST_VARIANCE)
    out = out if weight is None else out * weight
    return _per_loss(out, reduction, x.numel())


@pointwise(aten.binary_cross_entropy_with_logits.default, is_of_one_dtype=True)
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """-(p t log s(x) + (1 - t) log(1 - s(x))), computed with log s(x) = min(x, 0) - log(1 + exp(-|x|))."""
    log_sigmoid = torch.clamp(x, max=0) - torch.log1p(torch.exp(-torch.abs(x)))
    positive = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x - positive * log_sigmoid
    return reduce_loss(loss if weight is None else loss * weight, reduction)


def _positive_part(x: Tensor) -> Tensor:
    """max(0, x), and 0 for NaN, which clamp would keep."""
    return torch.where(x > 0, x, 0)


def _is_half_on_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and computation_dtype(x.dtype) is not x.dtype


@rule(aten.multi_margin_loss.default)
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """For each sample, the mean over wrong classes j of max(0, margin - x[target] + x[j]) ** p."""
    if kind_of(x.dtype) != FLOAT or x.ndim > 2 or x.numel() == 0 or _is_half_on_cpu(x):
        return NotImplemented
    z = cast(torch.atleast_2d(x), computation_dtype(x.dtype))
    index = torch.atleast_1d(target).unsqueeze(1)
    violation = _positive_part(+margin - torch.gather(z, 1, index) + z)
    loss = violation if p == 1 else violation * violation
    if weight is not None:
        loss = loss * cast(weight, z.dtype)[index]
    classes = torch.arange(z.shape[1], device=x.device)
    loss = torch.where(classes == index, 0, loss)
    each = torch.sum(loss, 1) / z.shape[1]
    if reduction == NONE and x.ndim < 2:
        return cast(each.squeeze(0), x.dtype) if target.ndim == 0 else cast(each, x.dtype)
    return cast(reduce_loss(each, reduction), x.dtype)


@rule(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> Any:
    """The labels of a row of `target` are those before its first -1; all other classes are wrong."""
    if kind_of(x.dtype) != FLOAT or x.ndim > 2 or x.numel() == 0 or _is_half_on_cpu(x):
        return NotImplemented
    z = cast(torch.atleast_2d(x), computation_dtype(x.dtype))
    labels = torch.atleast_2d(target)
    classes = torch.arange(z.shape[1], device=x.device)
    is_end = labels == -1
    is_label = torch.cumsum(is_end, 1) == 0
    labels = torch.where(is_label, labels, 0)
    is_target = torch.any((labels.unsqueeze(2) == classes) & is_label.unsqueeze(2), 1)
    margins = 1 - torch.gather(z, 1, labels).unsqueeze(2) + z.unsqueeze(1)  # sample, label, class
    is_counted = is_label.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(is_counted, _positive_part(margins), 0) / z.shape[1]
    if reduction == MEAN:
        out = torch.mean(torch.sum(loss, (1, 2)))
    elif reduction == SUM:
        out = torch.sum(loss)
    else:
        out = torch.sum(loss, (1, 2))
        out = out.squeeze(0) if x.ndim < 2 else out
    return cast(out, x.dtype), cast(is_target, x.dtype).reshape(target.shape)


def _class_dim(x: Tensor) -> int:
    return 0 if x.ndim == 1 else 1


def _weights_of(weight: Tensor | None, x: Tensor, index: Tensor) -> Tensor | None:
    """The weight of each target's class, in the shape of `index`."""
    return None if weight is None else aten.index.Tensor(cast(weight, computation_dtype(x.dtype)), [index])


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Minus the log-probability of each target's class; the second result is the sum of the weights, 0 for reduction "none"."""
    if kind_of(x.dtype) != FLOAT:
        return NotImplemented
    dim = _class_dim(x)
    z = cast(x, computation_dtype(x.dtype))
    is_counted = target != ignore_index
    index = checked(torch.where(is_counted, target, 0), x.shape[dim])
    picked = torch.gather(z, dim, index.unsqueeze(dim)).squeeze(dim)
    weights = _weights_of(weight, x, index)
    loss = torch.where(is_counted, -picked if weights is None else -picked * weights, 0)
    if reduction == NONE:
        return row_major(cast(loss, x.dtype)), x.new_zeros(())
    counted = is_counted if weights is None else torch.where(is_counted, weights, 0)
    total_weight = torch.sum(cast(counted, z.dtype))
    total = torch.sum(loss)
    return cast(total / total_weight if reduction == MEAN else total, x.dtype), cast(total_weight, x.dtype)


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    if kind_of(x.dtype) != FLOAT or (x.ndim == 4 and not x.is_contiguous()):
        return NotImplemented  # eager raises
    dim = _class_dim(x)
    dtype = computation_dtype(x.dtype)
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    g = cast(grad, dtype)
    if reduction == MEAN:
        g = g / cast(total_weight, dtype)
    weights = _weights_of(weight, x, index)
    each = torch.where(is_counted, -g if weights is None else -g * weights, 0)
    classes = torch.arange(x.shape[dim], device=x.device)
    classes = classes.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    return row_major(cast(torch.where(classes == index.unsqueeze(dim), each.unsqueeze(dim), 0), x.dtype))
