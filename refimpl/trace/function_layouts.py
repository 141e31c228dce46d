"""Results of torch functions whose kernels go another way for tensors without data, laid out as in eager mode.

Counterpart: none; torch's traces give strides of their own there
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
_MODE = 3  # the place of this argument


def laid_out(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """What the function gave for its arguments, copied where eager mode gives row-major results, whatever the argument is, or, of
    what is rolled, channels last."""
    if function in _ROW_MAJOR or is_pooled_without_gradient(function, result):
        return row_major(result)
    if function in _RESAMPLING and result.dim() == 3 and not _are_means(args, kwargs):
        # (batch, channels, size): others may have the channels last
        return row_major(result)
    if function in _ROLLS:
        return _rolled(result, *args, **kwargs)
    return result


def is_pooled_without_gradient(function: Any, result: Any) -> bool:
    """Whether eager's pooling of rows by a kernel of its own gave it, row-major memory and no view."""
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
    """Whether a resampling function is another one's call, which has a layout of its own."""
    return (args[_MODE] if len(args) > _MODE else kwargs.get("mode")) == "area"
