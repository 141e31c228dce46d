"""Gives results of decompositions, and of torch functions that call other ops on fake tensors, the strides that eager chooses.

Counterpart: torch/_prims_common/__init__.py suggest_memory_format
Differs: channels last is only suggested for four and five dimensions, as in eager's kernels. Gaps, and strides of dimensions of
size 1, count as in eager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.registry import aten
from refimpl.trace.eager_facts import is_known, result_strides
from refimpl.trace.layouts import agree_but_for_ones, contiguous_strides

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """ATen's `suggest_memory_format`: channels last for a tensor whose strides grow in that order, else contiguous."""
    wanted = _CHANNELS_LAST.get(x.ndim)
    return wanted if wanted is not None and _is_like_channels_last(x) else torch.contiguous_format


def _is_like_channels_last(x: torch.Tensor) -> bool:
    if x.is_contiguous() and x.stride(1) != 1:  # avoids guards on symbolic strides
        return False
    return _grows_from_channels(x.shape, x.stride())


def _grows_from_channels(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides grow in the order C, W, H, (D,) N, each by at least the size of the dimension before."""
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[dim] == 0 or strides[dim] < least:
            return False
        if dim == 0 and least == strides[1]:  # one channel and one pixel: counts as contiguous
            return False
        least = strides[dim] * (shape[dim] if shape[dim] > 1 else 1)
    return True


def in_layout_of(func: OpOverload, out: torch.Tensor, args: Sequence[Any], **kwargs: Any) -> torch.Tensor:
    """A decomposition's result, copied to the strides of the operator's own result if these differ."""
    if _are_contiguous([out, *args]):
        return out  # no operand could ask for another order
    asked = result_strides(func, args, kwargs, out)
    if asked is None or out.numel() == 0:
        return out
    (strides,) = asked
    if agree_but_for_ones(out.shape, out.stride(), strides):
        if torch.Tag.pointwise in func.tags or out.stride() == strides:
            return out
        return aten.copy.default(
            aten.empty_strided.default(out.shape, strides, dtype=out.dtype, device=out.device), out
        )
    order = sorted(range(out.ndim), key=lambda dim: -strides[dim])
    inverse = [order.index(dim) for dim in range(out.ndim)]
    return out.permute(order).contiguous().permute(inverse)


def _are_contiguous(values: Sequence[Any]) -> bool:
    """Whether all tensors are contiguous; False for symbolic sizes, where asking would record guards."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    numbers = (number for tensor in tensors for number in (*tensor.shape, *tensor.stride()))
    return all(type(number) is int for number in numbers) and all(tensor.is_contiguous() for tensor in tensors)


def laid_out_as(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The result in the memory format that the input suggests."""
    return in_format(out, suggested_format(x))


def row_major(out: torch.Tensor) -> torch.Tensor:
    """The result in contiguous format, which most kernels return whatever the input's strides."""
    return in_format(out, torch.contiguous_format)


def in_format(out: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """The result with the strides of a new tensor of this format, in dimensions of size 1 as well. `contiguous` ignores those,
    but later kernels order dimensions by them."""
    out = out.contiguous(memory_format=memory_format)
    return out if _is_like_new(out, memory_format) else aten.clone.default(out, memory_format=memory_format)


def with_strides_of(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The result with the strides of `x`, a dense tensor of the same shape, in dimensions of size 1 as well."""
    if out.stride() == x.stride():
        return out
    return aten.copy.default(aten.empty_strided.default(x.shape, x.stride(), dtype=x.dtype, device=x.device), out)


def _is_like_new(out: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """Whether dimensions of size 1 have the strides of a new tensor of this format; the other dimensions have. True for unbacked
    sizes."""
    if not any(_is_one(size) for size in out.shape) or not all(map(is_known, out.shape)):
        return True
    outwards = list(reversed(range(out.ndim)))
    if memory_format is not torch.contiguous_format:
        outwards = [1, *range(out.ndim - 1, 1, -1), 0]
    step: int | torch.SymInt = 1
    for dim in outwards:
        size, stride = out.shape[dim], out.stride(dim)
        if _is_one(size) and is_known(stride) and stride != step:
            return False
        step = step if type(size) is int and size < 2 else step * size
    return True


def _is_one(size: int | torch.SymInt) -> bool:
    """Whether the size, or the hint of a symbolic one, is 1; records no guard."""
    return is_known(size) and (size.node.hint if isinstance(size, torch.SymInt) else size) == 1


# Torch functions that call different ops on fake tensors than in eager.


_FUNCTIONAL = torch.nn.functional
_ROW_MAJOR = (_FUNCTIONAL.one_hot,)
_MAX_POOL1D = (_FUNCTIONAL.max_pool1d, torch.max_pool1d)
_RESAMPLING = (_FUNCTIONAL.interpolate, _FUNCTIONAL.upsample, _FUNCTIONAL.upsample_nearest)
_ROLLS = (torch.roll, torch.Tensor.roll)
_MODE = 3  # position of the argument `mode`
LAID_OUT = (*_ROW_MAJOR, *_MAX_POOL1D, *_RESAMPLING, *_ROLLS)  # functions whose results `laid_out` may copy


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
