"""Trial operands: real tensors with the layout of traced ones, on which real kernels run to learn the strides of results.

Counterpart: none; upstream's Python kernels compute strides
Differs: a trial operand has the sizes of the call (hints of symbolic ones), or smaller ones: sizes up to 4 stay, larger ones
become 5, 6, ... in the same order, and equal sizes stay equal. The order of dimensions, gaps between rows and expanded dimensions
stay.

A result's strides are translated back by its order of dimensions: a stride is the product of the sizes inside of it. This fails
for kernels that choose a layout by the sizes themselves (convolutions), and for results that are not dense.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import set_bits

KEPT = 4  # sizes up to this stand for themselves


def hints(numbers: Iterable[Any]) -> tuple[int, ...] | None:
    """Sizes or strides as ints, by the hints of symbolic ones; None if one is unbacked."""
    found = []
    for number in numbers:
        if type(number) is not int:
            if not number.node.has_hint():
                return None
            number = int(number.node.hint)
        found.append(number)
    return tuple(found)


def smaller_sizes(shapes: Iterable[Sequence[int]]) -> dict[int, int]:
    """Maps each size of a call to the size that a trial operand has instead."""
    sizes = sorted({size for shape in shapes for size in shape if size > KEPT})
    return {**{size: size for size in range(KEPT + 1)}, **{size: KEPT + 1 + at for at, size in enumerate(sizes)}}


def smaller_strides(shape: Sequence[int], strides: Sequence[int], sizes: Mapping[int, int]) -> tuple[int, ...] | None:
    """Strides of a trial operand of smaller sizes. None if the tensor is empty, or overlaps other than by expanded dimensions."""
    if 0 in shape:
        return None
    marks = {0: 0, 1: 1}  # maps strides of the tensor to strides of the trial operand
    end, end_of_trial = 1, 1  # elements that the dimensions so far span
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1 and t != 0):
        if stride < end:
            return None
        marks[stride] = end_of_trial if stride == end else 2 * end_of_trial
        end, end_of_trial = stride * size, marks[stride] * sizes[size]
        marks[end] = end_of_trial
    for stride in sorted({t for s, t in zip(shape, strides, strict=True) if s == 1 and t not in marks}):
        # The stride of a dimension of size 1 stays between the same two other strides.
        known = sorted(marks)
        at = bisect.bisect(known, stride)
        marks[stride] = marks[known[at - 1]] + 1
        if at < len(known) and marks[stride] >= marks[known[at]]:
            return None
    return tuple(marks[stride] for stride in strides)


class TrialOperands:
    """The trial operands of one call. `sizes` maps sizes of the call to sizes of trial operands; None if they are the same."""

    def __init__(self, sizes: Mapping[int, int] | None) -> None:
        self.sizes = sizes
        # Strides of each trial operand and of its operand.
        self._geometries: list[tuple[tuple[int, ...], Sequence[Any]]] = []

    def geometry(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape and strides of the trial operand for a tensor of backed sizes; None if it can have none."""
        shape, strides = hints(tensor.shape), hints(tensor.stride())
        assert shape is not None
        assert strides is not None
        if self.sizes is not None:
            smaller = smaller_strides(shape, strides, self.sizes)
            if smaller is None:
                return None
            shape, strides = tuple(self.sizes[size] for size in shape), smaller
        self._geometries.append((strides, tensor.stride()))
        return shape, strides

    def number(self, number: int | torch.SymInt) -> int:
        (known,) = hints([number]) or (0,)
        return known if self.sizes is None else self.sizes.get(known, known)

    def strides_of(self, made: torch.Tensor, result: torch.Tensor) -> tuple[Any, ...] | None:
        """Translate strides of `made`, the kernel's result on trial operands, to the sizes of the call; None if that fails."""
        shape = hints(result.shape)
        if (
            shape is None
            or made.layout is not torch.strided
            or made.dtype is not result.dtype
            or made.ndim != len(shape)
        ):
            return None
        if self.sizes is None:
            if tuple(made.shape) != shape:
                return None
            if made.stride() == hints(result.stride()):
                return result.stride()
            if all(type(size) is int for size in result.shape) and self._are_numbers():
                return made.stride()
        elif any((a in (0, 1) or b in (0, 1)) and a != b for a, b in zip(shape, made.shape, strict=True)):
            return None
        found = self._translated(made, result.shape)
        return result.stride() if found is not None and hints(found) == hints(result.stride()) else found

    def _are_numbers(self) -> bool:
        return all(type(stride) is int for _, strides in self._geometries for stride in strides)

    def _translated(self, made: torch.Tensor, shape: Sequence[Any]) -> tuple[Any, ...] | None:
        places = [dim for dim, size in enumerate(made.shape) if size != 1]
        products: dict[int, Any] = {0: 0, 1: 1}
        end: int = 1
        real: Any = 1
        for dim in sorted(places, key=lambda dim: (made.stride(dim), made.shape[dim])):
            if made.stride(dim) != end:
                return None
            if made.shape[dim] != 0:  # a size of 0 counts as 1 in contiguous strides
                end, real = end * made.shape[dim], real * shape[dim]
                products[end] = real
        found = []
        for dim, (size, stride) in enumerate(zip(made.shape, made.stride(), strict=True)):
            if stride in products and (size == 1 or stride != 0):
                found.append(products[stride])
                continue
            # A dimension of size 1 may have an operand's stride.
            kept = [
                theirs[at]
                for own, theirs in self._geometries
                if (at := dim - made.ndim + len(own)) >= 0 and own[at] == stride
            ]
            if size != 1 or not kept:
                return None
            found.append(kept[0])
        return tuple(found)


def filled(
    shape: Sequence[int], strides: Sequence[int], like: torch.Tensor, number: int, dtype: torch.dtype
) -> torch.Tensor:
    """A CPU tensor filled with one number, the gaps between its rows included.

    It has the conjugate and negative bits of `like` if it has that dtype.
    """
    made = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    if 0 not in shape:
        made.as_strided((reach(shape, strides),), (1,)).fill_(number)
    if dtype == like.dtype:
        set_bits(made, is_conj=like.is_conj(), is_neg=like.is_neg())
    return made


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory the tensor spans, gaps included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 1)
