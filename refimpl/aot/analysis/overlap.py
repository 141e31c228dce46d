"""Whether two tensors of one storage can touch the same memory.

Counterpart: torch/_functorch/_aot_autograd/input_output_analysis.py compute_overlapping_inputs,
_tensors_definitely_do_not_overlap
Differs: small tensors are compared address by address; upstream knows a few patterns.
"""

from __future__ import annotations

import itertools

import torch

_MOST_ADDRESSES = 65_536  # compared one by one; larger tensors whose extents meet are taken to overlap


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """False only if they certainly share no byte. Both must be strided tensors of one storage."""
    numbers = [*a.shape, *a.stride(), a.storage_offset(), *b.shape, *b.stride(), b.storage_offset()]
    if any(type(n) is not int for n in numbers):
        return True
    if a.numel() == 0 or b.numel() == 0:
        return False
    a_first, a_last = _extent(a)
    b_first, b_last = _extent(b)
    if a_last <= b_first or b_last <= a_first:
        return False
    if a.numel() + b.numel() > _MOST_ADDRESSES:
        return True
    return not _addresses(a).isdisjoint(_addresses(b))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements are one place in memory. Of sizes that are symbols only an expanded dimension is known."""
    geometry = list(zip(tensor.shape, tensor.stride(), strict=True))
    if any(type(s) is int and s == 0 and (type(n) is not int or n > 1) for n, s in geometry):
        return True
    if any(type(x) is not int for pair in geometry for x in pair):
        return False
    # Laid out from the smallest stride, each dimension begins behind what the ones before it take up.
    last = 0
    for n, s in sorted(((n, s) for n, s in geometry if n > 1), key=lambda pair: pair[1]):
        if s <= last:
            return (
                tensor.numel() <= _MOST_ADDRESSES and len(_addresses(tensor)) < tensor.numel() * tensor.element_size()
            )
        last += (n - 1) * s
    return False


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the byte after the last."""
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def _addresses(tensor: torch.Tensor) -> set[int]:
    width = tensor.element_size()
    steps = [range(0, n * s, s) if s else (0,) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    first = int(tensor.storage_offset())
    starts = {(first + sum(index)) * width for index in itertools.product(*steps)}
    return starts if width == 1 else {start + byte for start in starts for byte in range(width)}
