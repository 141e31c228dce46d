"""Strides computed without a real call: of elementwise results (TensorIterator), and of `view` and `expand`. Sizes are compared
without guards by `is_same_number`.

TensorIterator orders the dimensions of the result by the operands' strides: the first operand whose strides of two dimensions
differ decides. A stride of 0 (broadcast, expanded) does not decide, and the next operand is looked at.

Counterpart: torch/_prims_common/__init__.py compute_elementwise_output_strides; torch/_refs/__init__.py view, expand
Differs: follows TensorIterator where the two disagree. Comparisons of symbolic strides record guards. Strides along dimensions of
size 1 are eager's, which computes them from the next inner dimension. The fake kernel of `view` keeps the base's strides; torch's
Python version of `expand`, which fake tensors run for symbolic sizes, has strides of 1 there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides; symbolic integers count as integers


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if size != 0 else 1
    return tuple(reversed(strides))


def elementwise_strides(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...]:
    """Strides of an elementwise op's new result; the operands broadcast to its shape."""
    if all(tuple(own) == tuple(shape) for own, _ in operands):
        strides = _strides_of_all(shape, operands)
        if strides is not None:
            return strides
    order = _fastest_first(shape, operands)
    if order == list(reversed(range(len(shape)))):
        return contiguous_strides(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def empty_like_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of `empty_like` of a tensor with this shape and these strides."""
    return tuple(strides) if _is_dense(shape, strides) else elementwise_strides(shape, [(tuple(shape), tuple(strides))])


def agree_but_for_ones(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, others, strict=True))


def _strides_of_all(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...] | None:
    """The strides that all operands share, if these are dense; None otherwise. Strides of dimensions of size 1 need not agree."""
    if 0 in shape:  # always contiguous
        return contiguous_strides(shape)
    for format_strides in (contiguous_strides(shape), _channels_last_strides(shape)):
        if format_strides is not None and all(
            agree_but_for_ones(shape, strides, format_strides) for _, strides in operands
        ):
            return format_strides
    first = tuple(operands[0][1])
    if all(tuple(strides) == first for _, strides in operands) and _is_dense(shape, first):
        return first
    return None


def _channels_last_strides(shape: Sequence[int]) -> tuple[int, ...] | None:
    if len(shape) != 4:
        return None
    n, h, w, c = contiguous_strides([shape[0], shape[2], shape[3], shape[1]])
    return n, c, h, w


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the tensor is non-overlapping and dense."""
    step = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1):
        if stride != step:
            return False
        step *= size
    return True


def _fastest_first(shape: Sequence[int], operands: Sequence[Layout]) -> list[int]:
    """Dimensions by increasing stride. An insertion sort like TensorIterator's, because undecided comparisons make it partial."""
    everywhere = [_broadcast(shape, layout) for layout in operands]
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            sign = _compare(shape, everywhere, order[before], order[at])
            if sign > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif sign < 0:
                break
    return order


def _broadcast(shape: Sequence[int], layout: Layout) -> list[int]:
    own, strides = layout
    inner = shape[len(shape) - len(own) :]
    stretched = [0 if a == 1 and b != 1 else t for a, b, t in zip(own, inner, strides, strict=True)]
    return [0] * (len(shape) - len(own)) + stretched


def _compare(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """1 if dimension a has the larger stride, -1 if b has, 0 if no operand decides."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


# Strides of `view` and `expand` along dimensions of size 1, which memory format checks and kernels look at.


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
        while left and (_is_one(left[-1]) or not is_same_number(viewed, elements)):
            strides.append(viewed * step)
            viewed = viewed * left.pop()
        if not is_same_number(viewed, elements):
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
        if not _is_one(size) and not is_same_number(stride, elements * step):
            found.append((elements, step))
            elements, step = 1, stride
        elements = elements * size
    return [*found, (elements, step)]


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def is_same_number(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for all values of the symbols, as far as their expressions show it. Records no guard."""
    if type(a) is int and type(b) is int:
        return a == b
    return a is b or expression_of(a) == expression_of(b)


def is_same_shape(a: Any, b: Any) -> bool:
    """`is_same_number` for two sequences of sizes."""
    return len(a) == len(b) and all(map(is_same_number, a, b))


def expression_of(number: Any) -> Any:
    """The expression of a symbolic size; an int itself."""
    return number if type(number) is int else number.node.expr
