"""Strides of `expand` along dimensions of size 1.

A 0-dim tensor has stride 0 in all new dimensions; else a new dimension of size 1 gets size * stride of the next inner one.

Counterpart: torch/_refs/__init__.py expand
Differs: follows the kernel; torch's Python version, which fake tensors run for symbolic sizes, has strides of 1 there.
"""

from __future__ import annotations

from typing import Any

import torch

_EXPAND = torch.ops.aten.expand.default


def expanded_strides(func: Any, result: torch.Tensor, args: Any) -> tuple[Any, ...] | None:
    """Eager's strides of a fake `expand` result; None for other operators."""
    if func is not _EXPAND or args[0].layout is not torch.strided:
        return None
    count = args[0].dim()
    if count == 0:
        return (0,) * result.dim()
    strides = list(result.stride())
    for dim in range(result.dim() - count - 1, -1, -1):
        size = result.shape[dim]
        if type(size) is int and size == 1:
            strides[dim] = result.shape[dim + 1] * strides[dim + 1]
    return tuple(strides)
