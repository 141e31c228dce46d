"""Gives eager's strides to results of torch functions that call different ops on fake tensors than in eager.

Counterpart: none; in torch's traces the strides of these results differ from eager's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.trace.decompositions.layouts import in_format, row_major
from refimpl.trace.eager_facts import result_strides
from refimpl.trace.layouts.elementwise import contiguous_strides

_FUNCTIONAL = torch.nn.functional
_ROW_MAJOR = (_FUNCTIONAL.one_hot,)
_MAX_POOL1D = (_FUNCTIONAL.max_pool1d, torch.max_pool1d)
_RESAMPLING = (_FUNCTIONAL.interpolate, _FUNCTIONAL.upsample, _FUNCTIONAL.upsample_nearest)
_ROLLS = (torch.roll, torch.Tensor.roll)
_MODE = 3  # position of the argument `mode`


def laid_out(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """The function's result, copied to eager's layout if that differs: contiguous, or channels last for `roll`."""
    if function in _ROW_MAJOR or is_pooled_without_gradient(function, result):
        return row_major(result)
    if function in _RESAMPLING and result.dim() == 3 and not _are_means(args, kwargs):
        # (batch, channels, size): eager is contiguous; with more dimensions the result may be channels last
        return row_major(result)
    if function in _ROLLS:
        return _rolled(result, *args, **kwargs)
    return result


def is_pooled_without_gradient(function: Any, result: Any) -> bool:
    """Whether the result is of the max_pool1d kernel that eager uses without gradients: contiguous and no view."""
    return function in _MAX_POOL1D and isinstance(result, torch.Tensor) and _is_without_gradient(result)


def _is_without_gradient(result: torch.Tensor) -> bool:
    return result.device.type == "cpu" and not result.requires_grad


def _rolled(result: torch.Tensor, input: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    numbers = [[each] if isinstance(each, (int, torch.SymInt)) else each or () for each in (shifts, dims)]
    strides = result_strides(torch.ops.aten.roll.default, (input, *numbers), {}, result)
    if strides is None or strides[0] == contiguous_strides(result.shape):
        return result
    return in_format(result, torch.channels_last if result.dim() == 4 else torch.channels_last_3d)


def _are_means(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the mode is "area", which calls adaptive average pooling and has that op's strides."""
    return (args[_MODE] if len(args) > _MODE else kwargs.get("mode")) == "area"
