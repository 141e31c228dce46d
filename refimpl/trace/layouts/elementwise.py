"""Output strides of elementwise kernels (TensorIterator), computed where there is no real call: gradients, decompositions.

TensorIterator orders the dimensions of the result by the operands' strides: the first operand whose strides of two dimensions
differ decides. A stride of 0 (broadcast, expanded) does not decide, and the next operand is looked at.

Counterpart: torch/_prims_common/__init__.py compute_elementwise_output_strides
Differs: follows TensorIterator where the two disagree. Comparisons of symbolic strides record guards.
"""

from __future__ import annotations

from collections.abc import Sequence

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
