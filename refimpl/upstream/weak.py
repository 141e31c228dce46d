"""A map whose keys are objects and do not stay alive for it, and globals that go when such an object does.

Counterpart: torch/_dynamo/utils.py ExactWeakKeyDictionary, CleanupHook, CleanupManager
Differs: one table of entries, a mapping as Python's own are: it can be iterated over, and entries can be deleted.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

_Hooks = list[Callable[[], None]]


class _Entry(NamedTuple):
    owner: weakref.ref[Any]  # it takes the entry out of its map when the owner dies
    value: Any


class ExactWeakKeyDictionary(MutableMapping[Any, Any]):
    """A map from objects to values. A key is the object itself: one that is equal to it is another key.

    An entry goes when its key dies. Raises TypeError for a new key that cannot be referred to weakly, such as a number.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        known = self._entries.get(id(key))
        owner = self._watched(key) if known is None else known.owner
        self._entries[id(key)] = _Entry(owner, value)

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._entries[id(key)].value
        except KeyError:
            raise KeyError(key) from None

    def __delitem__(self, key: Any) -> None:
        if self._entries.pop(id(key), None) is None:
            raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        owners = [entry.owner() for entry in list(self._entries.values())]  # a key may die in between
        return (owner for owner in owners if owner is not None)

    def __len__(self) -> int:
        return len(self._entries)

    # Two maps are one only if they are one object: Mapping's comparison would go by the equality of keys.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def clear(self) -> None:
        """Forget every key."""
        self._entries = {}

    def _watched(self, key: Any) -> weakref.ref[Any]:
        address, this, is_exiting = id(key), weakref.ref(self), sys.is_finalizing

        def ended(_: weakref.ref[Any]) -> None:
            table = this()
            if table is not None and not is_exiting():  # at exit, what hooks need may be gone
                table._remove_id(address)

        return weakref.ref(key, ended)

    def _remove_id(self, address: int) -> Any:
        """Called when the key with this `id` has died. Returns the value that it had, None if it had none."""
        entry = self._entries.pop(address, None)
        return None if entry is None else entry.value


@dataclass(frozen=True, slots=True)
class CleanupHook:
    """A global variable that was added to `scope`. Calling the hook removes the variable."""

    scope: dict[str, Any]
    name: str

    def __call__(self) -> None:
        CleanupManager.count -= 1
        self.scope.pop(self.name, None)

    @classmethod
    def create(cls, scope: dict[str, Any], name: str, val: Any) -> CleanupHook:
        """Adds a global variable. Raises AssertionError where there is one of that name."""
        if name in scope:
            raise AssertionError(f"{name} is a global already\n  expected: a free name")
        made = cls(scope, name)
        scope.update({name: val})
        CleanupManager.count += 1
        return made


class CleanupManager(ExactWeakKeyDictionary):
    """The hooks to be called when an object dies, keyed by the object."""

    instance: ClassVar[CleanupManager]
    count: ClassVar[int] = 0  # global variables that hooks have yet to remove, of every manager

    def _remove_id(self, address: int) -> _Hooks:
        hooks: _Hooks = super()._remove_id(address) or []
        while hooks:
            hooks.pop(0)()
        return hooks


CleanupManager.instance = CleanupManager()
