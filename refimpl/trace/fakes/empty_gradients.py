"""Fake results of backward ops on empty tensors, where fake kernels divide by a number of elements that is 0.

Counterpart: torch/_decomp/decompositions.py mse_loss_backward, smooth_l1_loss_backward, huber_loss_backward,
native_group_norm_backward
Differs: no division, as in eager's kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor
from refimpl.trace.size_checks import is_known

aten = torch.ops.aten
_OF_MEANS = frozenset(
    [aten.huber_loss_backward.default, aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default]
)
_GROUPS = aten.native_group_norm_backward.default
_REDUCTION, _MEAN, _SUM = 3, 1, 2


def without_division(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with reduction "sum" in place of "mean", whose fake gradient is the same."""
    if func in _OF_MEANS and len(args) > _REDUCTION and args[_REDUCTION] == _MEAN:
        return (*args[:_REDUCTION], _SUM, *args[_REDUCTION + 1 :])
    return args


def of_empty_groups(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...] | None:
    """The gradients of a group norm's input (N, C, *), weight (C,) and bias (C,), by its output_mask, if the input is empty;
    None for other inputs and other ops."""
    if func is not _GROUPS:
        return None
    _, x, _, _, weight, _, channels, _, _, mask = args
    if not isinstance(x, FakeTensor) or not all(map(is_known, x.shape)) or x.numel() != 0:
        return None
    dtype = x.dtype if weight is None else weight.dtype
    results = ((x.shape, x.dtype), ((channels,), dtype), ((channels,), dtype))
    return tuple(
        x.new_empty(shape, dtype=dtype) if is_asked else None
        for (shape, dtype), is_asked in zip(results, mask, strict=True)
    )
