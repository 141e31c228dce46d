"""Containers of the program, such as dicts, deques, slices and iterators: their values, and the guards that hold their keys.

Counterpart: torch/_dynamo/variables/builder.py VariableBuilder.wrap_listlike, the branches for dicts and sets
Differs: one guard compares all keys that are constants, functions or classes. Where a tensor or another object that is compared
by identity is among the keys, each key has a guard of its own, at its place in the order of the dict.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import (
    AttributeSource,
    DictKeySource,
    DictPlaceSource,
    ItemSource,
    ReducedSource,
    RestSource,
    Source,
    items_ahead,
)
from refimpl.capture.values import (
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    FoundIteratorValue,
    ModulesValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    SetValue,
    SliceValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.classes import partial_attributes
from refimpl.capture.values.hashing import Member, has_own_key, is_compared_by_identity, is_known_key
from refimpl.capture.values.value import LazyValue

_MOST_AHEAD = 1024  # remaining elements of an iterator of the program
_MOST_KEYS = 10_000  # keys of a dict that are guarded each at its place
_TENSOR_KEYS = (torch.Tensor, torch.nn.Parameter)  # found by identity, though their `==` gives a tensor


def dict_of_program(state: Any, found: Any, source: Source, *, owner: Value | None = None) -> Value:
    """The value of a dict of the program, with guards on its keys. A dict whose keys no guard can hold is known by its type.

    owner: the object of which these are the attributes at the entry.
    """
    state.guard(GuardKind.TYPE, source, type(found))
    if state.effects.wrote_attributes_in(found, by_others_than=owner):
        raise GraphBreak("unsupported_operation", what="a use", kind="dict of an object that has changed")
    if not _is_consistent(found):
        return ObjectValue(found, source)
    items: dict[Any, tuple[Value, Value]] | None
    if all(map(is_known_key, found)):
        state.guard(GuardKind.KEYS, source, list(found))
        items = {key: (_known_key(key), LazyValue(item, ItemSource(source, key))) for key, item in found.items()}
    else:
        items = _items_by_place(state, found, source)
    if items is None:
        return ObjectValue(found, source)
    if type(found) is defaultdict:
        factory = state.wrap(found.default_factory, AttributeSource(source, "default_factory"))
        return DefaultDictValue(items, factory, source)
    return DictValue(items, source, type(found))


def modules_of_program(state: Any, found: Any, source: Source) -> Value | None:
    """The value of `sys.modules`; None for any other dict."""
    if found is not sys.modules:
        return None
    state.guard(GuardKind.TYPE, source, dict)

    def read_all() -> dict[Any, tuple[Value, Value]]:
        made = dict_of_program(state, found, source)
        if not isinstance(made, DictValue):
            raise GraphBreak("unsupported_operation", what="a use", kind="sys.modules")
        return made.items

    return ModulesValue(source, read_all)


def _items_by_place(state: Any, found: dict[Any, Any], source: Source) -> dict[Any, tuple[Value, Value]] | None:
    """The items of a dict some of whose keys are tensors or other objects that are compared by identity, each with guards
    of its own at its place in the dict; None for other dicts, and for large ones.
    """
    kinds = (
        (is_known_key(key) and type(key) is not tuple)
        or type(key) in _TENSOR_KEYS
        or is_compared_by_identity(type(key))
        for key in found
    )
    if len(found) > _MOST_KEYS or not all(kinds):
        return None
    state.guard(GuardKind.LENGTH, source, len(found))
    items: dict[Any, tuple[Value, Value]] = {}
    for index, (key, item) in enumerate(found.items()):
        way = DictKeySource(source, index)
        if is_known_key(key):
            state.guard(GuardKind.ID if has_own_key(key) else GuardKind.EQUALS, way, key)
            hashed, value = key, _known_key(key)
        else:
            value = state.wrap(key, way)
            if type(value) not in (ObjectValue, TensorValue):
                return None
            hashed = Member(value)
            if isinstance(value, ObjectValue):
                state.note_key(value)
        items[hashed] = (value, LazyValue(item, DictPlaceSource(source, index)))
    return items


def set_of_program(state: Any, found: Any, source: Source) -> Value | None:
    """The value of a set whose elements a guard can hold; None for another set."""
    if not all(map(is_known_key, found)):
        return None
    state.guard(GuardKind.TYPE, source, type(found))
    state.guard(GuardKind.KEYS, source, list(found))
    made = SetValue(type(found), source)
    made.real, made.order, made.is_ordered = type(found)(found), list(found), False
    made.values = {key: _known_key(key) for key in found}
    return made


def _is_consistent(found: Any) -> bool:
    """Whether the order of an OrderedDict has each of its keys, which `dict.clear(ordered)` and the like do not see to."""
    if type(found) is not OrderedDict:
        return True
    try:
        return len([*found.items()]) == len(found)
    except KeyError:
        return False


def _known_key(key: Any) -> Value:
    if type(key) is tuple:
        return SequenceValue(tuple, [_known_key(item) for item in key])
    return ObjectValue(key) if has_own_key(key) else ConstantValue(key)


def iterator_of_program(state: Any, found: Any, source: Source) -> Value | None:
    """The value of an iterator over a list, tuple or range; None for a long one, and if the segment has changed the list."""
    ahead, rest, over = items_ahead(found), RestSource(source), None
    if len(ahead) > _MOST_AHEAD:
        return None
    reduced = found.__reduce__()
    state.guard(GuardKind.TYPE, source, type(found))
    if type(ahead) is list:
        state.guard(GuardKind.LENGTH, ReducedSource(source), len(reduced))
    if (
        type(ahead) is list and len(reduced) > 2
    ):  # an iterator that is at the end of its list, but not exhausted, gives more if the list grows
        over = state.wrap(reduced[1][0], ItemSource(ItemSource(ReducedSource(source), 1), 0))
        if not isinstance(over, SequenceValue) or state.effects.is_changed(over):
            return None
    items: list[Value] = [LazyValue(item, ItemSource(rest, index)) for index, item in enumerate(ahead)]
    made = FoundIteratorValue(items, over, source)
    if over is not None:
        state.effects.watch(made)
    state.iterators.append(made)
    return made


def slice_of_program(state: Any, found: slice, source: Source) -> Value | None:
    """The value of a slice of constants and symbolic numbers; None for another slice."""
    state.guard(GuardKind.TYPE, source, slice)
    parts = [state.wrap(getattr(found, name), AttributeSource(source, name)) for name in ("start", "stop", "step")]
    if all(isinstance(part, ConstantValue) for part in parts):
        return ConstantValue(found)
    if not all(isinstance(part, (ConstantValue, NumberValue)) for part in parts):
        return None
    made = SliceValue(tuple(parts))
    made.source = source
    return made


def deque_of_program(state: Any, found: deque[Any], source: Source) -> Value:
    state.guard(GuardKind.TYPE, source, deque)
    state.guard(GuardKind.LENGTH, source, len(found))
    state.guard(GuardKind.EQUALS, AttributeSource(source, "maxlen"), found.maxlen)
    items: list[Value] = [LazyValue(item, ItemSource(source, index)) for index, item in enumerate(found)]
    return DequeValue(items, found.maxlen, source)


def partial_of_program(state: Any, found: functools.partial[Any], source: Source) -> Value | None:
    """The value of a partial function; None for one with attributes of its own."""
    if partial_attributes(found):
        return None
    state.guard(GuardKind.TYPE, source, type(found))
    state.guard(GuardKind.EMPTY, AttributeSource(source, "__dict__"))
    keywords = state.wrap(found.keywords, AttributeSource(source, "keywords"))
    args = state.wrap(found.args, AttributeSource(source, "args"))
    if not isinstance(keywords, DictValue) or not isinstance(args, SequenceValue):
        return None
    named = {key: value for key, (_, value) in keywords.items.items()}
    function = state.wrap(found.func, AttributeSource(source, "func"))
    return PartialValue(function, list(args.items), named, source)
