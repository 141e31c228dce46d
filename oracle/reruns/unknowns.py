"""Values of a widened run that are not what the program means: bits read as another dtype, and what is computed from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Unknowns:
    """Tensors known by their storage: a view of an unknown value is one, and what is written with one becomes one."""

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
        """`is_copy`: of memory that it shares in the program itself. Raises NoStorage for what cannot be told by its storage."""
        storage = _storage_of(tensor)
        if storage is None:
            raise NoStorage
        self._storages[storage._cdata] = storage
        if is_copy:
            self._copies.add(storage._cdata)

    def is_copy(self, tensor: torch.Tensor) -> bool:
        """Whether a write to it does not reach the memory that it is to reach."""
        storage = _storage_of(tensor)
        return storage is not None and storage._cdata in self._copies


class NoStorage(Exception):
    """A sparse tensor, or one of another library."""


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree."""
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()
