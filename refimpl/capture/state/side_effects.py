"""What a segment changes in objects that were there before it: noted while capturing, done once after the graph.

Counterpart: torch/_dynamo/side_effects.py SideEffects
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.values import (
    CellValue,
    DictValue,
    FoundIteratorValue,
    FrozenDictValue,
    ObjectValue,
    ReversedValue,
    SequenceValue,
    SetValue,
    Value,
)

Changed = SequenceValue | DictValue | SetValue | CellValue


@dataclass(slots=True)
class SideEffects:
    """In the order of the first change of each object. What is read after a change is what was written."""

    _changed: dict[Changed, dict[Any, Any]] = field(default_factory=dict)  # with what was in a dict before
    _attributes: dict[ObjectValue, dict[str, Any]] = field(default_factory=dict)
    _globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    _under_way: dict[Value, list[ReversedValue | FoundIteratorValue]] = field(default_factory=dict)  # by the list
    count: int = 0  # of changes

    def will_change(self, value: Changed) -> None:
        """The content of a value is about to be changed in place."""
        if isinstance(value, FrozenDictValue):
            raise GraphBreak("unsupported_operation", what="a change", kind="dict of an object")
        if any(not iterator.is_exhausted for iterator in self._under_way.get(value, ())):
            raise GraphBreak("unsupported_operation", what="a change under an iterator", kind=value.kind)
        if value.source is not None:
            self.count += 1
            if value not in self._changed:
                self._changed[value] = dict(value.items) if isinstance(value, DictValue) else {}

    def watch(self, iterator: ReversedValue | FoundIteratorValue) -> None:
        """It goes through a list that is not to be changed meanwhile."""
        assert iterator.of is not None
        self._under_way.setdefault(iterator.of, []).append(iterator)

    def is_changed(self, value: Value) -> bool:
        """Whether the content of a value is not what it was before."""
        return value in self._changed

    def set_attribute(self, value: ObjectValue, name: str, new: Any) -> None:
        """`value.name = new`."""
        self.count += 1
        self._attributes.setdefault(value, {})[name] = new

    def attribute(self, value: ObjectValue, name: str) -> Any:
        """What was written to the attribute; None if nothing was."""
        return self._attributes.get(value, {}).get(name)

    def has_attributes(self, value: ObjectValue) -> bool:
        """Whether any attribute was written."""
        return value in self._attributes

    def set_global(self, namespace: dict[str, Any], name: str, new: Any) -> None:
        """A global variable, by the namespace it is in."""
        self.count += 1
        self._globals.setdefault(id(namespace), (namespace, {}))[1][name] = new

    def global_(self, namespace: dict[str, Any], name: str) -> Any:
        """What was written to the variable; None if nothing was."""
        found = self._globals.get(id(namespace))
        return None if found is None else found[1].get(name)

    def contents(self) -> Iterator[Changed]:
        """Lists, dicts and cells whose content is another."""
        yield from self._changed

    def before(self, value: DictValue) -> dict[Any, tuple[Value, Value]]:
        """What was in a dict that was changed, as in `value.items`."""
        return self._changed[value]

    def attributes(self) -> Iterator[tuple[ObjectValue, str, Any]]:
        """Attributes that were written."""
        for value, names in self._attributes.items():
            for name, new in names.items():
                yield value, name, new

    def globals(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Global variables that were written."""
        for namespace, names in self._globals.values():
            for name, new in names.items():
                yield namespace, name, new
