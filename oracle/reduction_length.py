"""How many terms one element of an operator's result adds up: a table of rules, one per family of aten operators.

The rounding error of a sum grows with the number of its terms and with their order, which no two implementations share.
A blocked or pairwise order (eager) errs by less than one unit in the last place, one running sum (a loop over rows in a
fused kernel) by about the square root of the number of terms: N. J. Higham, The accuracy of floating point summation, 1993.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_Rule = Callable[[tuple[Any, ...], dict[str, Any]], int]
_FREE_TERMS = 16  # so few terms are within one epsilon in any order


def noise_factor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """By how much more than one epsilon an operator's inputs and result are moved; 1 without a long sum."""
    rule = _RULES.get(func._schema.name.removeprefix("aten::").rstrip("_"))
    if rule is None:
        return 1.0
    return max(1.0, math.sqrt(max(1, rule(args, kwargs)) / _FREE_TERMS))


def _over_dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Product of the reduced sizes; all of them where no dimension is named."""
    tensor = args[0]
    dims = kwargs.get("dim")
    if dims is None:
        candidates = [value for value in args[1:] if _is_dims(value)]
        dims = candidates[0] if candidates else None
    if dims is None or dims == []:
        return tensor.numel()
    dims = [dims] if isinstance(dims, int) else dims
    if tensor.dim() == 0:
        return 1
    return math.prod(tensor.shape[dim] for dim in dims if -tensor.dim() <= dim < tensor.dim())


def _is_dims(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value))


def _norm_over_dims(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return _over_dims((args[0], *args[2:]), kwargs)  # the second argument is the order


def _inner_of(position: int) -> _Rule:
    """The last size of a factor of a matrix product."""
    return lambda args, kwargs: args[position].shape[-1] if args[position].dim() else 1


def _all_of(position: int) -> _Rule:
    return lambda args, kwargs: args[position].numel()


def _window(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of a convolution: channels times kernel."""
    weight = args[1]
    return weight.numel() // max(1, weight.shape[0])


def _window_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The weight's gradient sums over batch and positions, the input's over channels and kernel."""
    gradient, weight = args[0], args[2]
    return max(gradient.numel() // max(1, weight.shape[0]), weight.numel() // max(1, min(weight.shape[:2])))


def _per_channel(position: int) -> _Rule:
    """Batch statistics: everything but the channel, dimension 1."""

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        tensor = args[position]
        return tensor.numel() // max(1, tensor.shape[1]) if tensor.dim() > 1 else tensor.numel()

    return rule


def _per_row(position: int) -> _Rule:
    """Layer and group statistics and their backward, which also sums over the rows."""

    def rule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        tensor = args[position]
        return tensor.numel() if tensor.dim() else 1

    return rule


def _accumulated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Scattered additions: every source element may land in one place."""
    sources = [value.numel() for value in args[1:] if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return max(sources, default=1)


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Scores over the head dimension, values over the keys; in backward the gradient comes first."""
    shapes = [value.shape for value in args[:4] if isinstance(value, torch.Tensor) and value.dim() >= 3]
    return max((max(shape[-1], shape[-2]) for shape in shapes), default=1)


_RULES: dict[str, _Rule] = {}
for _names, _rule in (
    ("sum mean nansum nanmean prod var std var_mean std_mean logsumexp cumsum cumprod logcumsumexp trace", _over_dims),
    ("_softmax _log_softmax softmax log_softmax _safe_softmax", _over_dims),
    (
        "_softmax_backward_data _log_softmax_backward_data",
        lambda args, kwargs: args[0].shape[args[2]] if args[0].dim() else 1,
    ),
    ("norm linalg_vector_norm", _norm_over_dims),
    ("mm bmm mv dot vdot matmul linear _scaled_mm linalg_matrix_exp", _inner_of(0)),
    ("addmm addmv baddbmm addbmm", _inner_of(1)),
    ("addr", lambda args, kwargs: 1),
    ("convolution _convolution convolution_overrideable mkldnn_convolution", _window),
    ("convolution_backward", _window_backward),
    ("native_batch_norm _native_batch_norm_legit batch_norm_with_update cudnn_batch_norm", _per_channel(0)),
    ("native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward", _per_channel(0)),
    ("native_layer_norm native_group_norm _fused_rms_norm", _per_row(0)),
    ("native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward", _per_row(0)),
    ("mse_loss binary_cross_entropy smooth_l1_loss huber_loss nll_loss_forward nll_loss2d_forward l1_loss", _all_of(0)),
    ("_cdist_forward _pdist_forward", _inner_of(0)),
    (
        "index_add scatter_add index_put _index_put_impl scatter_reduce index_reduce embedding_dense_backward",
        _accumulated,
    ),
    ("_embedding_bag _embedding_bag_forward_only segment_reduce index_backward", _accumulated),
    (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward",
        _attention,
    ),
):
    for _name in _names.split():
        _RULES[_name] = _rule
