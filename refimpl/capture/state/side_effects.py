"""Side effects of a segment on the program's objects: noted during capture, applied once after the graph.

Counterpart: torch/_dynamo/side_effects.py SideEffects
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.values import (
    CellValue,
    DictValue,
    FoundIteratorValue,
    FrozenDictValue,
    LazyValue,
    ObjectValue,
    ReversedValue,
    SequenceValue,
    SetValue,
    Value,
)
from refimpl.capture.values.classes import ends_with_code, has_own_attributes, own_attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterCall:
    """A call of one of `reorderable_logging_functions`, which is made after the graph.

    versions: the tensors among the arguments, with their version counters at the call. at: the offset of the call in the
    segment's first frame.
    """

    function: Value
    args: Sequence[Value]
    kwargs: dict[str, Value]
    versions: Sequence[tuple[torch.Tensor, int | None]]
    at: int


Changed = SequenceValue | DictValue | SetValue | CellValue


@dataclass(slots=True)
class SideEffects:
    """Side effects, in the order of each object's first change. A later read finds what was written."""

    _changed: dict[Changed, dict[Any, Any]] = field(default_factory=dict)  # with the former items of a dict
    _attributes: dict[Value, dict[str, Any]] = field(default_factory=dict)
    _globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    # list -> its iterators that have begun
    _under_way: dict[Value, list[ReversedValue | FoundIteratorValue]] = field(default_factory=dict)
    count: int = 0  # number of changes
    later_calls: list[LaterCall] = field(default_factory=list)

    # items of changed containers whose end runs code
    held: list[tuple[Changed, Any]] = field(default_factory=list)

    def will_change(self, value: Changed) -> None:
        """Must be called before the content of a value is changed in place. Raises GraphBreak where a change is not supported."""
        if isinstance(value, FrozenDictValue):
            raise GraphBreak("unsupported_operation", what="a change", kind="dict of an object")
        if any(not iterator.is_exhausted for iterator in self._under_way.get(value, ())):
            raise GraphBreak("unsupported_operation", what="a change under an iterator", kind=value.kind)
        if value.changed_source is not None:
            self.count += 1
            if value not in self._changed:
                self._changed[value] = dict(value.items) if isinstance(value, DictValue) else {}
                self.held += [(value, found) for found in _objects_in(value) if ends_with_code(found)]

    def dropped(self) -> Any:
        """An object whose end runs code, and which a container has lost; None if there is none."""
        return next((held for value, held in self.held if all(held is not each for each in _objects_in(value))), None)

    def watch(self, iterator: ReversedValue | FoundIteratorValue) -> None:
        """Notes an iterator over a list, which must not be changed before the iterator is exhausted."""
        assert iterator.of is not None
        self._under_way.setdefault(iterator.of, []).append(iterator)

    def is_changed(self, value: Value) -> bool:
        """Whether the content of a value has been changed."""
        return value in self._changed

    def changed_objects(self) -> list[Value]:
        """The program's objects that were changed: containers, cells, and objects with a written or deleted attribute."""
        return [value for value in (*self._changed, *self._attributes) if value.changed_source is not None]

    def set_attribute(self, value: Value, name: str, new: Any) -> None:
        """`value.name = new`."""
        self.count += 1
        self._attributes.setdefault(value, {})[name] = new

    def forget_attribute(self, value: Value, name: str) -> None:
        """Deletes an attribute that only the segment has set."""
        self.count += 1
        del self._attributes[value][name]

    def attribute(self, value: Value, name: str) -> Any:
        """The value written to an attribute; None if there is none."""
        return self._attributes.get(value, {}).get(name)

    def attributes_of(self, value: Value) -> Mapping[str, Any]:
        """The attributes of the object that have been written."""
        return self._attributes.get(value, {})

    def has_attributes(self, value: Value) -> bool:
        """Whether any attribute of the object has been written."""
        return value in self._attributes

    def wrote_attributes_in(self, found: dict[Any, Any], *, by_others_than: Value | None = None) -> bool:
        """Whether an attribute has been written of an object that has this dict for its attributes. Objects may share one."""
        written = [value for value in self._attributes if value is not by_others_than]
        objects = [value.object for value in written if isinstance(value, ObjectValue)]
        return any(has_own_attributes(object_) and own_attributes(object_) is found for object_ in objects)

    def set_global(self, namespace: dict[str, Any], name: str, new: Any) -> None:
        """Notes a write to a global variable of a namespace."""
        self.count += 1
        self._globals.setdefault(id(namespace), (namespace, {}))[1][name] = new

    def global_(self, namespace: dict[str, Any], name: str) -> Any:
        """The value written to a global variable; None if there is none."""
        found = self._globals.get(id(namespace))
        return None if found is None else found[1].get(name)

    def call_later(self, call: LaterCall) -> None:
        """Notes a call that is made after the graph."""
        self.count += 1
        self.later_calls.append(call)

    def kinds(self) -> list[str]:
        """What was changed, in words."""
        names = [f"attribute {name} of a {value.kind}" for value, name, _ in self.attributes()]
        return [
            *(f"a {value.kind}" for value in self._changed),
            *names,
            *(f"global {name}" for _, name, _ in self.globals()),
        ]

    def contents(self) -> Iterator[Changed]:
        """Lists, dicts, sets and cells that were changed."""
        yield from self._changed

    def before(self, value: DictValue) -> dict[Any, tuple[Value, Value]]:
        """The items of a changed dict before its first change, in the form of `value.items`."""
        return self._changed[value]

    def attributes(self) -> Iterator[tuple[Value, str, Any]]:
        """The written attributes."""
        for value, names in self._attributes.items():
            for name, new in names.items():
                yield value, name, new

    def globals(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """The written global variables."""
        for namespace, names in self._globals.values():
            for name, new in names.items():
                yield namespace, name, new


def version_of(tensor: torch.Tensor) -> int | None:
    """The tensor's version counter; None in inference mode."""
    return None if tensor.is_inference() else tensor._version


def _objects_in(value: Changed) -> Iterator[Any]:
    """The program's objects in a container."""
    match value:
        case DictValue():
            items = [item for _, item in value.items.values()]
        case SetValue():
            items = [*value.values.values()]
        case SequenceValue():
            items = value.items
        case CellValue():
            items = []
    yield from (item.object for item in items if isinstance(item, (LazyValue, ObjectValue)))
