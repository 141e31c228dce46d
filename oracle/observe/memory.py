"""Which results and arguments of the calls are still in memory after the caller has dropped them."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oracle.observe.flatten import RawLeaf
from oracle.observe.outcome import InMemory

_MANY = 20  # only a look at what may be a leak makes more calls, and there garbage would count as kept


def storage_key(tensor: torch.Tensor) -> int | None:
    """Identity of a tensor's storage; None if it is empty or the tensor has none."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_mkldnn:
        return None
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # wrapper subclasses have no storage
        return None
    return storage._cdata if storage.nbytes() else None


class CallMemory:
    """Weak references to the memory of each call's arguments, results and gradients. Mutable.

    Memory counts for the first call that shows it, so what every call returns anew from a cache counts once. Memory of a module
    and of globals does not count.
    """

    def __init__(self) -> None:
        self._own: dict[int, StorageWeakRef] = {}
        self._noted: dict[int, tuple[int, str, StorageWeakRef]] = {}

    def leave_out(self, state: Iterable[RawLeaf]) -> None:
        """Memory that the program itself keeps between calls."""
        for key, _, reference in _references(state):
            if key not in self._noted:
                self._own[key] = reference

    def note(self, call: int, leaves: Iterable[RawLeaf]) -> None:
        """Memory of a call. Its address stays taken while there is a reference, so no later memory is mistaken for it."""
        for key, path, reference in _references(leaves):
            if key not in self._own and key not in self._noted:
                self._noted[key] = call, path, reference

    def now(self, calls: int) -> tuple[InMemory, ...]:
        """Each piece of memory, and whether it is still there. Call it when nothing refers to the calls any more."""
        found = self._now()
        alive = {one.call for one in found if one.is_alive}
        if grows(alive, calls) or (calls > _MANY and alive):
            gc.collect()
            found = self._now()
        return found

    def _now(self) -> tuple[InMemory, ...]:
        return tuple(
            InMemory(call=call, path=path, is_alive=not reference.expired())
            for call, path, reference in self._noted.values()
        )


def grows(alive: Iterable[int], calls: int) -> bool:
    """Whether memory of every call but the last is alive. A cache of the last call, or of the first, is legitimate."""
    return calls > 1 and {*alive}.issuperset(range(calls - 1))


def _references(leaves: Iterable[RawLeaf]) -> Iterable[tuple[int, str, StorageWeakRef]]:
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor) and storage_key(leaf.value) is not None:
            reference = StorageWeakRef(leaf.value.untyped_storage())
            yield reference.cdata, leaf.path, reference
