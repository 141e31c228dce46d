"""Strides of expanded tensors along sizes of 1: a number has none anywhere, and a new dimension the step of the one inside of it.

Counterpart: torch/_refs/__init__.py expand
Differs: follows the kernel, where torch's function in Python, which fake tensors run where sizes are symbols, has steps of 1.
"""

from __future__ import annotations

from typing import Any

import torch

_EXPAND = torch.ops.aten.expand.default


def expanded_strides(func: Any, result: torch.Tensor, args: Any) -> tuple[Any, ...] | None:
    """Of what a fake kernel gave, by the kernel for data; None for other operators."""
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
