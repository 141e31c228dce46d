"""Strides of what elementwise kernels give, worked out: where there is no call to ask for (gradients, parts of decompositions).

Such a kernel orders the dimensions of a result by the strides of the operands: the first operand that can tell two dimensions
apart decides. Strides of 0 tell nothing, which is where broadcast and expanded operands leave the word to the next one. Fake
kernels written in Python judge the same questions by other rules.

Counterpart: torch/_prims_common/__init__.py compute_elementwise_output_strides
Differs: follows the kernels where the two disagree. Of symbolic sizes and strides the order is asked of their environment, which
guards what it does not know.
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
    """Strides of a new result of this shape, to which the operands broadcast, in elements."""
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


def kept_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of `empty_like` a tensor that has these."""
    return tuple(strides) if _is_dense(shape, strides) else elementwise_strides(shape, [(tuple(shape), tuple(strides))])


def agree_but_for_ones(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, others, strict=True))


def _strides_of_all(shape: Sequence[int], operands: Sequence[Layout]) -> tuple[int, ...] | None:
    """The strides that operands of one shape share, if they have no gaps; strides along a size of 1 need not agree."""
    if 0 in shape:  # which is contiguous whatever the strides
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
    """Whether each place between the first and the last holds one element."""
    step = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1):
        if stride != step:
            return False
        step *= size
    return True


def _fastest_first(shape: Sequence[int], operands: Sequence[Layout]) -> list[int]:
    """Dimensions from the fastest on: an insertion sort, as comparisons that tell nothing make the order partial."""
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
    """1 if dimension a is slower than b, -1 if it is faster, 0 if no operand tells."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
