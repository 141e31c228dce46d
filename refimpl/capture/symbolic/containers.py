"""Containers, items and iteration of symbolic values."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from enum import EnumMeta
from types import FunctionType
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import in_mro, is_a, is_enumeration
from refimpl.capture.symbolic.raising import UserRaise, raising, unsupported
from refimpl.capture.symbolic.values import (
    ArrayValue,
    CombinedIteratorValue,
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    NativeIteratorValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    SliceValue,
    TensorValue,
    Value,
)

_GENERIC = (list, dict, tuple, set, frozenset, type, deque, OrderedDict, defaultdict)  # `list[int]` is known
# Their `__iter__` is that of the dict of their modules.
_OF_MODULES = tuple(class_.__iter__ for class_ in (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict))


class SymbolicContainers(SymbolicBase):
    """What is in a value."""

    taken: list[tuple[Any, int, bool]]  # where iterators were before this instruction

    def untake(self) -> None:
        """An instruction that breaks has taken nothing."""
        for iterator, number, is_exhausted in reversed(self.taken):
            if isinstance(iterator, IteratorValue):
                iterator.position, iterator.is_exhausted = number, is_exhausted
            else:
                iterator.count = number
        self.taken.clear()

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
            case "set":
                return self.make_set(set, items)
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
            case "add", SetValue():
                self.add_to_set(container, items[0])
            case "update_set", SetValue() if self.runs_code(items[0]):
                return self.enter_polyfill(polyfills.added, [container, items[0]])
            case "update_set", SetValue():
                self.update_set(container, items[0])
            case "extend", SequenceValue() if self.runs_code(items[0]):
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
        if self.runs_code(value):
            if after is None:
                return self.enter_polyfill(polyfills.unpacked, [value, ConstantValue(before)])
            return self.enter_polyfill(polyfills.listed, [value])
        items = self.elements(value)
        if len(items) < before + (after or 0) or (after is None and len(items) != before):
            raising(ValueError)
        if after is None:
            return items
        middle = SequenceValue(list, items[before : len(items) - after])
        return [*items[:before], middle, *items[len(items) - after :]]

    # --------------------------------------------------------------------------------------------------------------- items

    def _known_key(self, key: Value) -> Value:
        """A number or slice that depends on sizes, as it is now."""
        if isinstance(key, NumberValue):
            return self.state.specialised(key)
        if isinstance(key, SliceValue) and not any(isinstance(self.state.see(part), TensorValue) for part in key.parts):
            return ConstantValue(slice(*(self.constant_of(part, "a slice") for part in key.parts)))
        return key

    def get_item(self, container: Any, key: Any) -> Any:
        container, key = self.state.see(container), self.state.see(key)
        if isinstance(container, (SequenceValue, TensorValue)):
            key = self.plain_of_member(key)
        if isinstance(key, SliceValue) and isinstance(container, (SequenceValue, ConstantValue)):
            key = ConstantValue(slice(*(self.constant_of(part, "a slice") for part in key.parts)))
        if not isinstance(container, TensorValue):
            key = self._known_key(key)
        match container, key:
            case TensorValue(), _:
                return self.state.operator(operator.getitem, [container, key], {})
            case ArrayValue(), _:
                return self.array_operator(operator.getitem, [container, key])
            case SequenceValue(), ConstantValue() if type(key.value) in (int, bool, slice):
                return self._element(container, key.value)
            case SequenceValue(), ConstantValue():
                raising(TypeError)
            case DictValue(), _:
                found = container.items.get(self.hash_key(key))
                return self.missing_item(container, key) if found is None else found[1]
            case ConstantValue(), ConstantValue():
                return self.folded(operator.getitem, [container, key], {})
            case ObjectValue(), _ if is_a(container.object, type):
                return self._item_of_class(container, key)
            case ((ObjectValue() | InstanceValue()), _):
                return self.call_special(container, "__getitem__", [key])
            case _:
                unsupported("an item", container)

    def _item_of_class(self, container: ObjectValue, key: Value) -> Any:
        """`class_[key]`, by `__class_getitem__`; a member of an enumeration by name."""
        class_: Any = container.object
        if is_a(class_, EnumMeta) and type(class_).__getitem__ is EnumMeta.__getitem__:
            member = class_._member_map_.get(self.constant_of(key, "a name"))
            if member is None:
                raise UserRaise(ErrorValue(KeyError, [key]))
            return ObjectValue(member)
        if any(class_ is known for known in _GENERIC):
            return ObjectValue(class_[self._annotation(key)])
        found = in_mro(class_, "__class_getitem__")
        if not is_a(found, classmethod) and not is_a(found, FunctionType):
            unsupported("an item", container)
        function = found.__func__ if is_a(found, classmethod) else found
        return self.enter_function(ObjectValue(function), [container, key], {})

    def _annotation(self, value: Any) -> Any:
        """What stands in the brackets of `list[...]`: classes and what is made of them."""
        value = self.state.see(value)
        match value:
            case SequenceValue() if value.class_ in (tuple, list):
                return value.class_([self._annotation(item) for item in value.items])
            case ObjectValue():
                return value.object
            case ConstantValue() if value.value is None or value.value is ...:
                return value.value
            case _:
                unsupported("an item of a class", value)

    def _element(self, container: SequenceValue, key: Any) -> Value:
        if isinstance(key, slice):
            if isinstance(container, DequeValue):
                raising(TypeError, "sequence index must be integer, not 'slice'")
            class_ = container.class_ if container.class_ in (list, torch.Size) else tuple
            return SequenceValue(class_, container.items[key])
        if not -len(container.items) <= key < len(container.items):
            raising(IndexError)
        return container.items[key]

    def missing_item(self, container: DictValue, key: Value) -> Any:
        """What `__missing__` of a dict gives."""
        if not isinstance(container, DefaultDictValue) or self.is_none(container.factory):
            raise UserRaise(ErrorValue(KeyError, [self.state.see(key)]))
        self.hash_key(key)
        return self.enter_polyfill(polyfills.made_for, [container, key, container.factory])

    def set_item(self, container: Any, key: Any, item: Any) -> Enter | None:
        container, key = self.state.see(container), self.state.see(key)
        if not isinstance(container, TensorValue):
            key = self._known_key(key)
        match container, key:
            case TensorValue(), _:
                self.state.operator(operator.setitem, [container, key, item], {})
            case ArrayValue(), _:
                self.array_operator(operator.setitem, [container, key, item])
            case SequenceValue(class_=class_), ConstantValue() if class_ is list and type(key.value) is int:
                self._element(container, key.value)  # is there
                self.state.effects.will_change(container)
                container.items[key.value] = item
            case SequenceValue(class_=class_), ConstantValue() if class_ is list and type(key.value) is slice:
                self._set_slice(container, key.value, item)
            case DequeValue(), ConstantValue() if type(key.value) is int:
                self._element(container, key.value)
                self.state.effects.will_change(container)
                container.items[key.value] = item
            case SequenceValue(class_=class_), _ if class_ is tuple:
                raising(TypeError, "'tuple' object does not support item assignment")
            case DictValue(), _:
                self.put(container, key, item)
            case ((ObjectValue() | InstanceValue()), _):
                return self.call_special(container, "__setitem__", [key, item])
            case _:
                unsupported("an assignment to an item", container)

    def _set_slice(self, container: SequenceValue, where: slice, item: Any) -> None:
        more = self.elements(item)
        changed = list(container.items)
        try:
            changed[where] = more
        except ValueError as error:
            raise UserRaise(ErrorValue(ValueError, [ConstantValue(arg) for arg in error.args])) from error
        self.state.effects.will_change(container)
        container.items[:] = changed

    def delete_item(self, container: Any, key: Any) -> Enter | None:
        container, key = self.state.see(container), self.state.see(key)
        if isinstance(key, NumberValue):
            key = self.state.specialised(key)
        match container, key:
            case DictValue(), _:
                hashed = self.hash_key(key)
                if hashed not in container.items:
                    raise UserRaise(ErrorValue(KeyError, [key]))
                self.state.effects.will_change(container)
                del container.items[hashed]
            case SequenceValue(class_=class_), ConstantValue() if class_ is list and type(key.value) in (int, slice):
                self._element(container, key.value)
                self.state.effects.will_change(container)
                del container.items[key.value]
            case DequeValue(), ConstantValue() if type(key.value) is int:
                self._element(container, key.value)
                self.state.effects.will_change(container)
                del container.items[key.value]
            case ((ObjectValue() | InstanceValue()), _):
                return self.call_special(container, "__delitem__", [key])
            case _:
                unsupported("deleting an item", container)

    def contains(self, item: Any, container: Any, inverted: bool) -> Any:
        item, container = self.state.see(item), self.state.see(container)
        match container:
            case DictValue():
                return ConstantValue((self.hash_key(item) in container.items) is not inverted)
            case DictViewValue(which="keys"):
                return ConstantValue((self.hash_key(item) in container.over.items) is not inverted)
            case DictViewValue(which="items"):
                return self._contains_pair(container, item, inverted)
            case SetValue():
                return ConstantValue(self.is_in_set(item, container) is not inverted)
            case ConstantValue() if type(container.value) is frozenset:
                return ConstantValue(self.is_in_set(item, container) is not inverted)
            case ConstantValue() if isinstance(item, (ConstantValue, NumberValue)):
                is_in = self.constant_of(self.folded(operator.contains, [container, item], {}), "`in`")
                return ConstantValue(is_in is not inverted)
            case SequenceValue() | DictViewValue():
                return self._contained_in(self.elements(container), item, container, inverted)
            case IteratorValue() | CombinedIteratorValue() | GeneratorValue() | NativeIteratorValue():
                found = self.enter_polyfill(polyfills.contained, [container, item, ConstantValue(not inverted)])
                return found
            case _:
                return self.object_contains(item, container, inverted)

    def _contains_pair(self, container: DictViewValue, item: Value, inverted: bool) -> Any:
        if not isinstance(item, SequenceValue) or item.class_ is not tuple or len(item.items) != 2:
            return ConstantValue(inverted)
        found = container.over.items.get(self.hash_key(item.items[0]))
        same = False if found is None else self.same_or_equal(found[1], item.items[1])
        return unsupported("`in`", container) if same is None else ConstantValue(same is not inverted)

    def _contained_in(self, elements: list[Value], item: Value, container: Value, inverted: bool) -> Any:
        for element in elements:
            same = self.same_or_equal(element, item)
            if same is None:
                items = container if isinstance(container, SequenceValue) else SequenceValue(list, elements)
                return self.enter_polyfill(polyfills.contained, [items, item, ConstantValue(not inverted)])
            if same:
                return ConstantValue(not inverted)
        return ConstantValue(inverted)

    def length(self, value: Any) -> Any:
        value = self.state.see(value)
        match value:
            case SequenceValue() | DictValue():
                return ConstantValue(len(value.items))
            case DictViewValue():
                return ConstantValue(len(value.over.items))
            case SetValue():
                return ConstantValue(len(value.real))
            case ObjectValue() if is_enumeration(value.object):
                return ConstantValue(len(value.object))
            case ConstantValue():
                return self.folded(len, [value], {})
            case TensorValue() | ArrayValue():
                return self.state.size_of(value, 0) if value.fake.dim() else unsupported("the length", value)
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
            case ConstantValue() if type(value.value) is frozenset:
                return self.elements_of_set(self.as_set(value))
            case SetValue():
                return self.elements_of_set(value)
            case TensorValue() if value.fake.dim():
                return [self.get_item(value, ConstantValue(index)) for index in range(int(value.fake.shape[0]))]
            case ArrayValue() if value.fake.dim() > 1:  # of one dimension: numbers, each read when it is its turn
                return [self.get_item(value, ConstantValue(index)) for index in range(int(value.fake.shape[0]))]
            case DictViewValue():
                return value.elements()
            case IteratorValue() | CombinedIteratorValue():
                return self._rest(value)
            case ObjectValue() if is_enumeration(value.object):
                return [ObjectValue(member) for member in value.object]
            case ObjectValue() if (
                getattr(type(value.object), "__iter__", None) in _OF_MODULES and value.source is not None
            ):
                return self._modules_in(value)
            case _:
                inside = self.elements_inside(value)
                return inside if inside is not None else unsupported("iterating", value)

    def runs_code(self, value: Any) -> bool:
        """Whether going through it may run code of the user's, or that of an iterator here."""
        value = self.state.see(value)
        match value:
            case GeneratorValue() | NativeIteratorValue():
                return True
            case InstanceValue():
                return self.special(value, "__iter__") is not None
            case ObjectValue():
                is_plain = getattr(type(value.object), "__iter__", None) in _OF_MODULES
                return not is_plain and self.special(value, "__iter__") is not None
            case _:
                return False

    def pairs_of(self, value: Any) -> list[tuple[Value, Value]]:
        """What `dict` makes of it: the pairs of a mapping, or those that it consists of."""
        value = self.state.see(value)
        if isinstance(value, DictValue):
            return list(value.items.values())
        pairs = [self.elements(pair) for pair in self.elements(value)]
        if any(len(pair) != 2 for pair in pairs):
            raise GraphBreak("op_raises_on_fake", what="dict", error="ValueError")
        return [(first, second) for first, second in pairs]

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
            case IteratorValue() | CombinedIteratorValue() | GeneratorValue() | NativeIteratorValue():
                return value
            case SequenceValue() if value.class_ in (list, tuple, torch.Size):
                return IteratorValue(value, value.items)
            case DictValue() | DictViewValue():
                made = IteratorValue(value, self.elements(value))
                made.keys = list(_dict_of(value).items)
                return made
            case SequenceValue() | SetValue() | ConstantValue() | TensorValue() | ArrayValue():
                return IteratorValue(value, self.elements(value))
            case ObjectValue() if is_enumeration(value.object):
                members: list[Value] = [ObjectValue(member) for member in value.object]
                return IteratorValue(SequenceValue(list, members), members)
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
                return self._next_of_container(iterator)
            case CombinedIteratorValue():
                return self._next_of_parts(iterator)
            case GeneratorValue():
                return self.resumed(iterator)
            case NativeIteratorValue():
                return self.resumed(self.stepped(iterator))
            case InstanceValue():
                return self.call_special(iterator, "__next__", [])
            case _:
                unsupported("next()", iterator)

    def _next_of_container(self, iterator: IteratorValue) -> Any:
        self.taken.append((iterator, iterator.position, iterator.is_exhausted))
        if not iterator.is_exhausted:
            self._check_unchanged(iterator)
        if iterator.is_exhausted or iterator.position >= len(iterator.items):
            iterator.is_exhausted = True  # for good, even if a list grows
            return Exhausted()
        iterator.position += 1
        if isinstance(iterator.over, DictViewValue):  # the items may have changed
            return iterator.over.elements()[iterator.position - 1]
        return iterator.items[iterator.position - 1]

    def _check_unchanged(self, iterator: IteratorValue) -> None:
        """What C notices of changes of what is iterated over."""
        match iterator.over:
            case DictValue() | DictViewValue():
                table = _dict_of(iterator.over)
                if len(table.items) != len(iterator.keys):
                    is_ordered = table.class_ is OrderedDict
                    raising(
                        RuntimeError,
                        f"{'OrderedDict mutated' if is_ordered else 'dictionary changed size'} during iteration",
                    )
                if [*table.items] != iterator.keys:
                    unsupported("iterating while keys change", table)
            case SetValue():
                if len(iterator.over.real) != len(iterator.items):
                    raising(RuntimeError, "Set changed size during iteration")
                if any(
                    value is not item
                    for value, item in zip(iterator.over.values.values(), iterator.items, strict=False)
                ):
                    if {id(value) for value in iterator.over.values.values()} != {id(item) for item in iterator.items}:
                        unsupported("iterating while elements change", iterator.over)
            case DequeValue():
                if len(iterator.over.items) != len(iterator.items):
                    raising(RuntimeError, "deque mutated during iteration")
                if any(value is not item for value, item in zip(iterator.over.items, iterator.items, strict=True)):
                    unsupported("iterating while elements change", iterator.over)
            case _:
                pass

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
            self.taken.append((iterator, iterator.count, False))
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
            case SequenceValue() if value.class_ is torch.Size:
                return torch.Size([self.constant_of(item, what) for item in value.items])
            case DictValue() if value.class_ in (dict, OrderedDict):
                pairs = [
                    (self.constant_of(key, what), self.constant_of(item, what)) for key, item in value.items.values()
                ]
                return value.class_(pairs)
            case SetValue() if value.source is None and value.is_ordered:
                return value.real
            case ObjectValue() if is_a(value.object, (type, FunctionType)) or self.plain_of_member(value) is not value:
                return value.object
            case NumberValue():
                return self.state.specialised(value).value
            case _:
                unsupported(what, value)


def _dict_of(value: DictValue | DictViewValue) -> DictValue:
    return value.over if isinstance(value, DictViewValue) else value
