"""Overlap of tensors in memory, which decides whether a write has a defined result."""

from __future__ import annotations

import numpy as np
import torch


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory, so that the result of a write depends on the kernel's order."""
    sizes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    if any(size == 0 for _, size in sizes):
        return False
    extent = 1
    for stride, size in sorted(sizes):
        if stride < extent:
            break
        extent = stride * (size - 1) + extent
    else:
        return False  # the stride of each dimension exceeds the extent of all smaller ones
    found = _places(tensor)
    return len(np.unique(found)) < found.size


def share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same storage, even if they do not overlap."""
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether an element of one overlaps an element of the other."""
    if not share_storage(one, other) or not one.numel() or not other.numel():
        return False
    return bool(np.intersect1d(_bytes(one), _bytes(other)).size)


def partly_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they share memory without being the same elements in the same order."""
    if not share_storage(one, other):
        return False
    is_same = (
        one.dtype is other.dtype
        and one.shape == other.shape
        and one.storage_offset() == other.storage_offset()
        and all(a == b or n == 1 for a, b, n in zip(one.stride(), other.stride(), one.shape, strict=True))
    )
    return not is_same and share_memory(one, other)


def _places(tensor: torch.Tensor) -> np.ndarray:
    """Offsets of the elements in their storage, counted in elements."""
    found = np.full((), tensor.storage_offset(), dtype=np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = found[..., None] + np.arange(size, dtype=np.int64) * stride
    return found.reshape(-1)


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    size = tensor.element_size()
    return np.unique((_places(tensor)[:, None] * size + np.arange(size)).reshape(-1))
