"""Gradients of what has no elements: fake kernels divide by their number.

Counterpart: torch/_decomp/decompositions.py mse_loss_backward, smooth_l1_loss_backward, huber_loss_backward,
native_group_norm_backward
Differs: as the kernels, these divide by nothing that is 0.
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
    """The arguments for the fake kernel: the gradient of a mean is like that of a sum."""
    if func in _OF_MEANS and len(args) > _REDUCTION and args[_REDUCTION] == _MEAN:
        return (*args[:_REDUCTION], _SUM, *args[_REDUCTION + 1 :])
    return args


def of_empty_groups(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor | None, ...] | None:
    """Gradients of a group norm's argument (N, C, *), weight and bias (C,) as its output_mask says, where there are no
    elements; None elsewhere."""
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
