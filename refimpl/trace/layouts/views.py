"""Strides of `view` and `expand` along dimensions of size 1, which memory format checks and kernels look at.

Counterpart: torch/_refs/__init__.py view, expand
Differs: follows eager, which computes them from the next inner dimension. The fake kernel of `view` keeps the base's strides;
torch's Python version of `expand`, which fake tensors run for symbolic sizes, has strides of 1 there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_EXPAND = aten.expand.default
_VIEWS = frozenset([aten.view.default, aten._unsafe_view.default])


def viewed_strides(func: Any, shape: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Strides of a view of this shape. None for other operators, for empty tensors, and if the expressions of symbolic sizes do
    not show which dimensions are contiguous to each other."""
    if func not in _VIEWS or not any(map(_is_one, shape)):
        return None
    x = args[0]
    numbers = (*shape, *x.shape)
    if any(type(number) is int and number == 0 for number in numbers):
        return None
    left, strides = list(shape), []
    for elements, step in _stretches(x.shape, x.stride()):
        viewed: Any = 1
        while left and (_is_one(left[-1]) or not _is_same(viewed, elements)):
            strides.append(viewed * step)
            viewed = viewed * left.pop()
        if not _is_same(viewed, elements):
            return None
    return None if left else tuple(reversed(strides))


def expanded_strides(func: Any, result: torch.Tensor, args: Any) -> tuple[Any, ...] | None:
    """Eager's strides of a fake `expand` result. None for other operators.

    A 0-dim tensor has stride 0 in all new dimensions; else a new dimension of size 1 gets size * stride of the next inner one.
    """
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


def _stretches(shape: Sequence[Any], strides: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Runs of dimensions that are contiguous to each other, innermost first: number of elements and stride of each run."""
    found: list[tuple[Any, Any]] = []
    elements: Any = 1
    step: Any = strides[-1] if strides else 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        if not _is_one(size) and not _is_same(stride, elements * step):
            found.append((elements, step))
            elements, step = 1, stride
        elements = elements * size
    return [*found, (elements, step)]


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal ints or have equal expressions; records no guard."""
    return _expression(a) == _expression(b)


def _expression(number: Any) -> Hashable:
    return number if type(number) is int else number.node.expr
