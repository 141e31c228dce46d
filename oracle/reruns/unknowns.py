"""Mark the tensors of a run in fp64 that are no ground truth, such as the result of `x.view(torch.int32)` and its uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Unknowns:
    """Tensors with unknown values, identified by their storage, so that views of an unknown tensor are unknown too."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}  # kept alive: their addresses are the keys
        self._copies: set[int] = set()

    def __len__(self) -> int:
        return len(self._storages)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        storage = _storage_of(tensor)
        return storage is not None and storage._cdata in self._storages

    def reach(self, values: Any) -> bool:
        """Whether a tensor of the tree is unknown."""
        return bool(self._storages) and any(tensor in self for tensor in tensors_in(values))

    def add(self, tensor: torch.Tensor, *, is_copy: bool = False) -> None:
        """Mark a tensor. `is_copy`: it is a copy here, but in the program it shares memory with another tensor.

        Raises NoStorage for a tensor that cannot be identified by a storage.
        """
        storage = _storage_of(tensor)
        if storage is None:
            raise NoStorage
        self._storages[storage._cdata] = storage
        if is_copy:
            self._copies.add(storage._cdata)

    def is_copy(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is such a copy: a write to it does not reach the tensor that it shares memory with."""
        storage = _storage_of(tensor)
        return storage is not None and storage._cdata in self._copies


class NoStorage(Exception):
    """The tensor is sparse or a subclass, and has no plain storage."""


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()
