"""Strides of what operators of several results, of several steps or of a format of their own give on a CPU, where fake kernels
lay their results out otherwise.

Counterpart: torch/_meta_registrations.py, torch/_decomp/decompositions.py (their layouts of these operators)
Differs: follows the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.dtypes import common_dtype
from refimpl.trace.layouts.elementwise import (
    agree_but_for_ones,
    contiguous_strides,
    elementwise_strides,
    kept_strides,
    strides_by_operands,
)
from refimpl.trace.layouts.norms import normalised_strides
from refimpl.trace.layouts.rolled import channels_last_strides, is_like_channels_last
from refimpl.trace.size_checks import is_known

aten = torch.ops.aten

_BATCH_NORM = aten.native_batch_norm.default

Strides = tuple[Any, ...]
Rule = Callable[[torch.Size, Sequence[Any]], Strides | None]  # by the result's shape and the arguments


def _row_major(shape: torch.Size, args: Sequence[Any]) -> Strides:
    return contiguous_strides(shape)


def _like_first(shape: torch.Size, args: Sequence[Any]) -> Strides:
    return kept_strides(shape, args[0].stride())


def _like_target(shape: torch.Size, args: Sequence[Any]) -> Strides | None:
    """A loss that is written over its target's difference with 1."""
    return kept_strides(shape, args[1].stride()) if args[1].shape == shape else None


def _dropped_out(shape: torch.Size, args: Sequence[Any]) -> Strides:
    """The mask lies as what is dropped out; where nothing is drawn, that is cloned."""
    x, _, is_training = args
    return kept_strides(shape, x.stride()) if is_training is False else _by(shape, [x])


def _dropout_backward(shape: torch.Size, args: Sequence[Any]) -> Strides:
    return _with_number(shape, _by(shape, args[:2]))


def _infinities(shape: torch.Size, args: Sequence[Any]) -> Strides | None:
    (x,) = args
    if x.dtype.is_complex:
        return None
    return _with_number(shape, _by(shape, [x])) if x.dtype.is_floating_point else kept_strides(shape, x.stride())


def _by_operands(shape: torch.Size, args: Sequence[Any]) -> Strides | None:
    x, y = args[:2]  # of which the result may be the sum
    return _by(shape, [x, y]) if x.dtype == y.dtype and x.shape == y.shape == shape else None


def _by_gradient_last(shape: torch.Size, args: Sequence[Any]) -> Strides:
    gradient, *operands = args
    return _by(shape, [*operands, gradient])


def _by(shape: torch.Size, operands: Sequence[torch.Tensor]) -> Strides:
    """Of an elementwise kernel that computes in the dtype of the first."""
    layouts = [(tuple(x.shape), x.stride()) for x in operands]
    return strides_by_operands(shape, layouts, operands, operands[0].dtype, has_number=False)


def _with_number(shape: torch.Size, strides: Strides) -> Strides:
    """Of an elementwise kernel over what lies so and a number."""
    return elementwise_strides(shape, [(tuple(shape), strides), ((), ())])


def _batch_norm_backward(shape: torch.Size, args: Sequence[Any]) -> Strides | None:
    return None if args[1].shape != shape else normalised_strides(_BATCH_NORM, args[1:])


def _group_norm_backward(shape: torch.Size, args: Sequence[Any]) -> Strides:
    is_last = is_like_channels_last(shape, args[1].stride())
    return channels_last_strides(shape) if is_last else contiguous_strides(shape)


_RULES: Mapping[Any, Sequence[Rule | None]] = MappingProxyType(
    {
        aten.native_dropout.default: (_dropped_out, _like_first),
        aten.native_dropout_backward.default: (_dropout_backward,),
        aten._prelu_kernel.default: (_like_first,),
        aten._prelu_kernel_backward.default: (_by_gradient_last, _by_gradient_last),
        aten.isinf.default: (_infinities,),
        aten.binary_cross_entropy_with_logits.default: (_like_target,),
        aten.mse_loss.default: (_by_operands,),
        aten.smooth_l1_loss.default: (_by_operands,),
        aten.log_sigmoid_forward.default: (_row_major, _row_major),
        aten.nll_loss2d_forward.default: (_row_major, None),
        aten.isin.Tensor_Tensor: (_row_major,),
        aten.im2col.default: (_row_major,),
        aten.diag_embed.default: (_row_major,),
        aten.index_add.default: (_row_major,),
        aten.index_copy.default: (_row_major,),
        aten.native_batch_norm_backward.default: (_batch_norm_backward, None, None),
        aten.native_group_norm_backward.default: (_group_norm_backward, None, None),
        aten.native_layer_norm_backward.default: (_row_major, None, None),
        aten.sort.default: (_like_first, _like_first),
        aten.sort.stable: (_like_first, _like_first),
        **dict.fromkeys(
            (
                aten.index_fill.int_Scalar,
                aten.index_fill.int_Tensor,
                aten.index_put.default,
                aten._unsafe_index_put.default,
                aten.zero.default,
            ),
            (_like_first,),
        ),
    }
)


def kernel_strides(func: Any, results: Sequence[Any], args: Sequence[Any]) -> Sequence[Strides | None] | None:
    """Strides of all results of a call, None for one that is left as it is. None for other operators and devices, and sizes that
    only a run of the graph knows."""
    rules = _RULES.get(func)
    if rules is None:
        return _of_each(results, args) if _is_of_each(func) else None
    if not _are_known([*args, *results]):
        return None
    return [
        None if rule is None or not isinstance(x, torch.Tensor) or 0 in x.shape else rule(x.shape, args)
        for rule, x in zip(rules, results, strict=True)
    ]


def _are_known(values: Sequence[Any]) -> bool:
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    numbers = [number for x in tensors for number in (*x.shape, *x.stride())]
    return all(x.device.type == "cpu" and x.layout is torch.strided for x in tensors) and all(map(is_known, numbers))


@functools.cache
def _is_of_each(func: Any) -> bool:
    """Whether it is an elementwise operator for each tensor of a list; the others (norms) have results of other shapes."""
    return (
        isinstance(func, OpOverload) and func._schema.name.startswith("aten::_foreach_") and not func._schema.is_mutable
    )


def _of_each(results: Sequence[torch.Tensor], args: Sequence[Any]) -> Sequence[Strides | None]:
    """Their fake kernels err along sizes of 1 only."""
    found: list[Strides | None] = []
    for at, result in enumerate(results):
        operands = [each[at] if isinstance(each, (list, tuple)) else each for each in args]
        found.append(_of_one(result, operands))
    return found


def _of_one(result: torch.Tensor, operands: Sequence[Any]) -> Strides | None:
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if tensors[0].shape != result.shape or not _are_known([result, *tensors]) or 0 in result.shape:
        return None
    has_number = any(isinstance(x, (int, float, complex)) for x in operands)
    layouts = [(tuple(x.shape), x.stride()) for x in tensors]
    strides = strides_by_operands(result.shape, layouts, tensors, common_dtype(*operands), has_number=has_number)
    return strides if agree_but_for_ones(result.shape, strides, result.stride()) else None
