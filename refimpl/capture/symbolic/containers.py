"""Containers, items and iteration of symbolic values."""

from __future__ import annotations

import operator
from collections import defaultdict
from types import FunctionType
from typing import Any, NoReturn

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import is_a
from refimpl.capture.symbolic.state import UserRaise, raising, unsupported
from refimpl.capture.symbolic.values import (
    CombinedIteratorValue,
    ConstantValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SliceValue,
    TensorValue,
    Value,
)

# Their `__iter__` is that of the dict of their modules.
_OF_MODULES = tuple(class_.__iter__ for class_ in (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict))


class SymbolicContainers(SymbolicBase):
    """What is in a value."""

    # ------------------------------------------------------------------------------------------------------------ building

    def build(self, kind: str, items: list[Any]) -> Any:
        match kind:
            case "tuple":
                return SequenceValue(tuple, items)
            case "list":
                return SequenceValue(list, items)
            case "dict":
                made = DictValue({})
                for index in range(0, len(items), 2):
                    self.put(made, items[index], items[index + 1])
                return made
            case "slice":
                parts = tuple(self.state.see(item) for item in items)
                if all(isinstance(part, ConstantValue) for part in parts):
                    return ConstantValue(slice(*(part.value for part in parts)))
                return SliceValue(parts)
            case "string":
                return ConstantValue("".join(self.constant_of(item, "a part of a string") for item in items))
            case _:
                raise GraphBreak("unsupported_operation", what="a display", kind=kind)

    def put(self, container: DictValue, key: Any, value: Value) -> None:
        """Keys that are equal are one: the first key stays, the last value counts."""
        key = self.state.see(key)
        hashed = self.hash_key(key)
        self.state.effects.will_change(container)
        container.items[hashed] = (container.items[hashed][0] if hashed in container.items else key, value)

    def grow(self, how: str, container: Any, *items: Any) -> Enter | None:
        container = self.state.see(container)
        match how, container:
            case "append", SequenceValue():
                self.state.effects.will_change(container)
                container.items.append(items[0])
            case "extend", SequenceValue() if isinstance(self.state.see(items[0]), GeneratorValue):
                return self.enter_polyfill(polyfills.extended, [container, items[0]])
            case "extend", SequenceValue():
                more = self.elements(items[0])
                self.state.effects.will_change(container)
                container.items.extend(more)
            case "put", DictValue():
                self.put(container, *items)
            case (("update_dict" | "merge"), DictValue()):
                other = self.state.see(items[0])
                if not isinstance(other, DictValue) or (how == "merge" and container.items.keys() & other.items.keys()):
                    unsupported(how, other)
                for key, value in other.items.values():
                    self.put(container, key, value)
            case _:
                unsupported(how, container)

    def const_keys(self, keys: Any) -> list[Any]:
        return self.elements(keys)

    def list_to_tuple(self, value: Any) -> Any:
        return SequenceValue(tuple, self.elements(value))

    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        if isinstance(self.state.see(value), GeneratorValue):
            if after is None:  # it is asked for one more than there are variables, and not to its end
                unsupported("unpacking", self.state.see(value))
            return self.enter_polyfill(polyfills.listed, [value])
        items = self.elements(value)
        if len(items) < before + (after or 0) or (after is None and len(items) != before):
            raising(ValueError)
        if after is None:
            return items
        middle = SequenceValue(list, items[before : len(items) - after])
        return [*items[:before], middle, *items[len(items) - after :]]

    # --------------------------------------------------------------------------------------------------------------- items

    def get_item(self, container: Any, key: Any) -> Any:
        container, key = self.state.see(container), self.state.see(key)
        if isinstance(key, NumberValue) and not isinstance(container, TensorValue):
            key = self.state.specialised(key)
        match container, key:
            case TensorValue(), _:
                return self.state.operator(operator.getitem, [container, key], {})
            case SequenceValue(), ConstantValue() if type(key.value) in (int, bool, slice):
                return self._element(container, key.value)
            case DictValue(), _:
                found = container.items.get(self.hash_key(key))
                if found is None:
                    self._raise_missing_key(container, key)
                return found[1]
            case ConstantValue(), ConstantValue():
                return self.folded(operator.getitem, [container, key], {})
            case ((ObjectValue() | InstanceValue()), _):
                return self.call_special(container, "__getitem__", [key])
            case _:
                unsupported("an item", container)

    def _element(self, container: SequenceValue, key: Any) -> Value:
        if isinstance(key, slice):
            class_ = container.class_ if container.class_ in (list, torch.Size) else tuple
            return SequenceValue(class_, container.items[key])
        if not -len(container.items) <= key < len(container.items):
            raising(IndexError)
        return container.items[key]

    def _raise_missing_key(self, container: DictValue, key: Value) -> NoReturn:
        if container.class_ is defaultdict:
            unsupported("a key that is missing", container)
        raise UserRaise(ErrorValue(KeyError, [key]))

    def set_item(self, container: Any, key: Any, item: Any) -> Enter | None:
        container, key = self.state.see(container), self.state.see(key)
        if isinstance(key, NumberValue) and not isinstance(container, TensorValue):
            key = self.state.specialised(key)
        match container, key:
            case TensorValue(), _:
                self.state.operator(operator.setitem, [container, key, item], {})
            case SequenceValue(class_=class_), ConstantValue() if class_ is list and type(key.value) is int:
                self._element(container, key.value)  # is there
                self.state.effects.will_change(container)
                container.items[key.value] = item
            case DictValue(), _:
                self.put(container, key, item)
            case _:
                unsupported("an assignment to an item", container)

    def delete_item(self, container: Any, key: Any) -> Enter | None:
        container, key = self.state.see(container), self.state.see(key)
        if isinstance(container, DictValue) and self.hash_key(key) in container.items:
            self.state.effects.will_change(container)
            del container.items[self.hash_key(key)]
            return
        if isinstance(container, DictValue):
            self._raise_missing_key(container, key)
        unsupported("deleting an item", container)

    def contains(self, item: Any, container: Any, inverted: bool) -> Any:
        item, container = self.state.see(item), self.state.see(container)
        match container:
            case DictValue():
                return ConstantValue((self.hash_key(item) in container.items) is not inverted)
            case ConstantValue() if isinstance(item, (ConstantValue, NumberValue)):
                is_in = self.constant_of(self.folded(operator.contains, [container, item], {}), "`in`")
                return ConstantValue(is_in is not inverted)
            case SequenceValue():
                for element in container.items:
                    same = self.identical(item, element, False)
                    if same.value or self.truth(self.compare("==", element, item)) is True:
                        return ConstantValue(not inverted)
                return ConstantValue(inverted)
            case _:
                unsupported("`in`", container)

    def length(self, value: Any) -> Any:
        value = self.state.see(value)
        match value:
            case SequenceValue() | DictValue():
                return ConstantValue(len(value.items))
            case DictViewValue():
                return ConstantValue(len(value.over.items))
            case ConstantValue():
                return self.folded(len, [value], {})
            case TensorValue():
                return self.size_value(value, 0) if value.fake.dim() else unsupported("the length", value)
            case ObjectValue() | InstanceValue():
                return self.call_special(value, "__len__", [])
            case _:
                unsupported("the length", value)

    def elements(self, value: Any) -> list[Value]:
        """All that iterating gives, where that runs no code of the user's."""
        value = self.state.see(value)
        match value:
            case SequenceValue():
                return list(value.items)
            case DictValue():
                return [key for key, _ in value.items.values()]
            case ConstantValue() if isinstance(value.value, (str, bytes, range)):
                if len(value.value) > 4096:
                    raise GraphBreak("too_many_instructions", what=4096)
                return [ConstantValue(item) for item in value.value]
            case ConstantValue() if isinstance(value.value, tuple):
                return [ConstantValue(item) for item in value.value]
            case TensorValue() if value.fake.dim():
                return [self.get_item(value, ConstantValue(index)) for index in range(int(value.fake.shape[0]))]
            case DictViewValue():
                return value.elements()
            case IteratorValue() | CombinedIteratorValue():
                return self._rest(value)
            case ObjectValue() if (
                getattr(type(value.object), "__iter__", None) in _OF_MODULES and value.source is not None
            ):
                return self._modules_in(value)
            case _:
                unsupported("iterating", value)

    def _modules_in(self, value: ObjectValue) -> list[Value]:
        """What a ModuleList or Sequential holds, or the names in a ModuleDict."""
        table = self.load_attr(value, "_modules")
        is_dict = is_a(value.object, torch.nn.ModuleDict)
        found = self.state.see(table)
        if not isinstance(found, DictValue):
            unsupported("iterating", value)
        return [key if is_dict else module for key, module in found.items.values()]

    def _rest(self, iterator: Value) -> list[Value]:
        found = []
        while not isinstance(item := self.next(iterator), Exhausted):
            found.append(item)
        return found

    # ----------------------------------------------------------------------------------------------------------- iteration

    def get_iter(self, value: Any) -> Any:
        value = self.state.see(value)
        match value:
            case IteratorValue() | CombinedIteratorValue() | GeneratorValue():
                return value
            case SequenceValue() if value.class_ in (list, tuple, torch.Size):
                return IteratorValue(value, value.items)
            case SequenceValue() | DictValue() | DictViewValue() | ConstantValue() | TensorValue():
                return IteratorValue(value, self.elements(value))
            case ObjectValue() if getattr(type(value.object), "__iter__", None) in _OF_MODULES:
                items = self.elements(value)
                return IteratorValue(SequenceValue(list, items), items)
            case ObjectValue() | InstanceValue():
                return self.call_special(value, "__iter__", [])
            case _:
                unsupported("iterating", value)

    def next(self, iterator: Any) -> Any:
        iterator = self.state.see(iterator)
        match iterator:
            case IteratorValue():
                if iterator.position >= len(iterator.items):
                    return Exhausted()
                iterator.position += 1
                return iterator.items[iterator.position - 1]
            case CombinedIteratorValue():
                return self._next_of_parts(iterator)
            case GeneratorValue():
                return self.resumed(iterator)
            case _:
                unsupported("next()", iterator)

    def _next_of_parts(self, iterator: CombinedIteratorValue) -> Any:
        found = []
        for part in iterator.parts:
            item = self.next(part)
            if isinstance(item, Enter):
                unsupported("next() of parts", part)
            if isinstance(item, Exhausted):
                return item
            found.append(item)
        if iterator.class_ is enumerate:
            found.insert(0, ConstantValue(iterator.count))
            iterator.count += 1
        return SequenceValue(tuple, found)

    def constant_of(self, value: Any, what: str) -> Any:
        """The object of a constant. Breaks for everything else."""
        value = self.state.see(value)
        match value:
            case ConstantValue():
                return value.value
            case SequenceValue() if value.class_ in (tuple, list):
                return value.class_([self.constant_of(item, what) for item in value.items])
            case ObjectValue() if is_a(value.object, (type, FunctionType)):
                return value.object
            case NumberValue():
                return self.state.specialised(value).value
            case _:
                unsupported(what, value)
