"""Weak maps by identity, and globals that go when their owner does.

Counterpart: torch/_dynamo/utils.py ExactWeakKeyDictionary, CleanupHook, CleanupManager
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


class ExactWeakKeyDictionary:
    """A map from objects, equal ones told apart, that does not keep them alive."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.refs: dict[int, weakref.ref[Any]] = {}

    def __getitem__(self, key: Any) -> Any:
        return self.values[id(key)]

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.values.get(id(key), default)

    def __contains__(self, key: Any) -> bool:
        return id(key) in self.values

    def __len__(self) -> int:
        return len(self.values)

    def __setitem__(self, key: Any, value: Any) -> None:
        place = id(key)
        if place not in self.refs:
            self.refs[place] = weakref.ref(key, lambda _: self._remove_id(place))
        self.values[place] = value

    def _remove_id(self, place: int) -> None:
        self.values.pop(place, None)
        self.refs.pop(place, None)

    def clear(self) -> None:
        """Forgets all."""
        self.refs.clear()
        self.values.clear()


@dataclass(frozen=True)
class CleanupHook:
    """Removes a global when it is called."""

    scope: dict[str, Any]
    name: str

    def __call__(self) -> None:
        if CleanupManager.count is not None:  # the interpreter is not ending
            CleanupManager.count -= 1
        self.scope.pop(self.name, None)

    @staticmethod
    def create(scope: dict[str, Any], name: str, val: Any) -> CleanupHook:
        """Sets a global. Raises AssertionError where there is one of that name."""
        assert name not in scope, f"{name} is a global already\n  expected: a free name"
        scope[name] = val
        CleanupManager.count += 1
        return CleanupHook(scope, name)


class CleanupManager(ExactWeakKeyDictionary):
    """Hooks by the object that they go with; `count`: how many globals there are."""

    count: ClassVar[int] = 0
    instance: ClassVar[CleanupManager]

    def _remove_id(self, place: int) -> None:
        hooks: list[Callable[[], None]] = self.values.get(place, [])
        for hook in hooks:
            hook()
        super()._remove_id(place)


CleanupManager.instance = CleanupManager()
