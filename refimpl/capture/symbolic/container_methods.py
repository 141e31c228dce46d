"""Methods of lists, tuples, deques and dicts.

Counterpart: torch/_dynamo/variables/lists.py, dicts.py
Differs: a method checks all it needs before it changes a value, so that a break leaves the value as it was.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.raising import UserRaise, raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    SequenceValue,
    SetValue,
    Value,
)

Method = Callable[[Any, Any, list[Any], dict[str, Any]], Any]


def method_of_container(domain: Any, receiver: Value, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A method of a list, tuple, torch.Size, deque, dict or view."""
    match receiver:
        case SetValue() if not kwargs:
            return domain.method_of_set(receiver, name, args)
        case DictValue():
            method = _DICT_METHODS.get(name)
        case DequeValue():
            method = _DEQUE_METHODS.get(name)
        case SequenceValue() if receiver.class_ is list:
            method = _LIST_METHODS.get(name)
        case SequenceValue():
            method = _TUPLE_METHODS.get(name)
        case DictViewValue() if name == "isdisjoint":
            method = _isdisjoint
        case _:
            method = None
    if method is None or (kwargs and name not in _WITH_KEYWORDS):
        unsupported(f"method {name}", receiver)
    limits = _COUNTS.get(name)
    if limits is not None and not limits[0] <= len(args) <= limits[1]:
        _wrong(name)
    return method(domain, receiver, args, kwargs)


def _nothing() -> Value:
    return ConstantValue(None)


def _wrong(what: str) -> Any:
    raise GraphBreak("op_raises_on_fake", what=what, error="an exception")


def _index(domain: Any, value: Any) -> int:
    index = domain.constant_of(value, "an index")
    return int(index) if type(index) in (int, bool) else _wrong("an index")


# ---------------------------------------------------------------------------------------------------------- sequences


def _append(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.append(args[0])
    return _nothing()


def _extend(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if domain.runs_code(args[0]):
        return domain.enter_polyfill(polyfills.extended, [receiver, args[0]])
    more = domain.elements(args[0])
    domain.state.effects.will_change(receiver)
    receiver.items.extend(more)
    _keep_within(receiver, from_left=True)
    return _nothing()


def _insert(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    index = _index(domain, args[0])
    if isinstance(receiver, DequeValue) and receiver.maxlen is not None and len(receiver.items) >= receiver.maxlen:
        raising(IndexError, "deque already at its maximum size")
    domain.state.effects.will_change(receiver)
    receiver.items.insert(index, args[1])
    return _nothing()


def _pop(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    index = _index(domain, args[0]) if args else -1
    if not -len(receiver.items) <= index < len(receiver.items):
        if isinstance(receiver, DequeValue):
            raising(IndexError, "pop from an empty deque")
        raising(IndexError, "pop index out of range" if receiver.items else "pop from empty list")
    domain.state.effects.will_change(receiver)
    return receiver.items.pop(index)


def _reverse(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.reverse()
    return _nothing()


def _clear(domain: Any, receiver: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.clear()
    return _nothing()


def _copy_of_list(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return SequenceValue(list, list(receiver.items))


def _place(domain: Any, receiver: SequenceValue, args: list[Any]) -> Any:
    """Where the first equal item is; None where there is none; a frame where code of the user's has to say."""
    for index, item in enumerate(receiver.items):
        same = domain.same_or_equal(item, args[0])
        if same is None:
            return domain.enter_polyfill(polyfills.index_of, [receiver, args[0]])
        if same:
            return index
    return None


def _index_of(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    begin = _index(domain, args[1]) if len(args) > 1 else 0
    end = _index(domain, args[2]) if len(args) > 2 else len(receiver.items)
    places = range(len(receiver.items))[begin:end]
    for index in places:
        same = domain.same_or_equal(receiver.items[index], args[0])
        if same is None and len(args) == 1 and receiver.class_ in (list, tuple):
            return domain.enter_polyfill(polyfills.index_of, [receiver, args[0]])
        if same is None:
            unsupported("method index", receiver)
        if same:
            return ConstantValue(index)
    raising(ValueError)


def _count_of(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = [domain.same_or_equal(item, args[0]) for item in receiver.items]
    if None in found:
        return domain.enter_polyfill(polyfills.count_of, [receiver, args[0]])
    return ConstantValue(sum(found))


def _remove(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    place = _place(domain, receiver, args)
    if place is None:
        raising(ValueError, f"{receiver.class_.__name__}.remove(x): x not in {receiver.class_.__name__}")
    if type(place) is not int:
        return domain.enter_polyfill(polyfills.removed, [receiver, args[0]])
    domain.state.effects.will_change(receiver)
    del receiver.items[place]
    return _nothing()


def _sort(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs.keys() - {"key", "reverse"}:
        _wrong("sort")
    key = kwargs.get("key", _nothing())
    if not domain.is_none(key):
        is_reversed = kwargs.get("reverse", ConstantValue(False))
        return domain.enter_polyfill(polyfills.sorted_in_place, [receiver, key, is_reversed])
    ordered = domain.in_order(receiver.items, receiver.items, kwargs.get("reverse"))
    domain.state.effects.will_change(receiver)
    receiver.items[:] = ordered
    return _nothing()


def _product(domain: Any, receiver: SequenceValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if receiver.class_ is not torch.Size:
        unsupported("method numel", receiver)
    total: Any = ConstantValue(1)
    for item in receiver.items:
        total = domain.binary("*", total, item)
    return total


def _length(domain: Any, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.length(receiver)


def _contains(domain: Any, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.contains(args[0], receiver, False)


def _get_item(domain: Any, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.get_item(receiver, args[0])


def _set_item(domain: Any, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    entered = domain.set_item(receiver, args[0], args[1])
    return unsupported("method __setitem__", receiver) if entered is not None else _nothing()


def _iterator(domain: Any, receiver: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.get_iter(receiver)


# ------------------------------------------------------------------------------------------------------------- deques


def _keep_within(receiver: SequenceValue, *, from_left: bool) -> None:
    """A deque drops what does not fit at its other end."""
    if isinstance(receiver, DequeValue) and receiver.maxlen is not None:
        surplus = max(0, len(receiver.items) - receiver.maxlen)
        receiver.items[:] = receiver.items[surplus:] if from_left else receiver.items[: len(receiver.items) - surplus]


def _append_to_deque(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    _append(domain, receiver, args, kwargs)
    _keep_within(receiver, from_left=True)
    return _nothing()


def _append_left(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    domain.state.effects.will_change(receiver)
    receiver.items.insert(0, args[0])
    _keep_within(receiver, from_left=False)
    return _nothing()


def _extend_left(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    for item in domain.elements(args[0]):
        _append_left(domain, receiver, [item], kwargs)
    return _nothing()


def _pop_left(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return _pop(domain, receiver, [ConstantValue(0)], kwargs)


def _rotate(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    steps = _index(domain, args[0]) if args else 1
    rotated = deque(receiver.items)
    rotated.rotate(steps)
    domain.state.effects.will_change(receiver)
    receiver.items[:] = rotated
    return _nothing()


def _copy_of_deque(domain: Any, receiver: DequeValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    return DequeValue(list(receiver.items), receiver.maxlen)


# -------------------------------------------------------------------------------------------------------------- dicts


def _copy_of_dict(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if isinstance(receiver, DefaultDictValue):
        return DefaultDictValue(dict(receiver.items), receiver.factory)
    return DictValue(dict(receiver.items), class_=receiver.class_)


def _get(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    found = receiver.items.get(domain.hash_key(args[0]))
    if found is not None:
        return found[1]
    return args[1] if len(args) > 1 else _nothing()


def _view(which: str) -> Method:
    return lambda domain, receiver, args, kwargs: DictViewValue(receiver, which)


def _dict_pop(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    key = domain.hash_key(args[0])
    if key in receiver.items:
        domain.state.effects.will_change(receiver)
        return receiver.items.pop(key)[1]
    if len(args) > 1:
        return args[1]
    raise UserRaise(ErrorValue(KeyError, [domain.state.see(args[0])]))


def _is_last(domain: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """The argument `last` of an OrderedDict's methods."""
    given = [*args, *kwargs.values()]
    if len(given) > 1 or kwargs.keys() - {"last"}:
        _wrong("last")
    return not given or bool(domain.constant_of(given[0], "last"))


def _pop_item(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if (args or kwargs) and receiver.class_ is not OrderedDict:
        _wrong("popitem")
    is_last = _is_last(domain, args, kwargs)
    if not receiver.items:
        name = "dictionary" if receiver.class_ is OrderedDict else "popitem(): dictionary"
        raising(KeyError, f"{name} is empty")
    domain.state.effects.will_change(receiver)
    key = next(reversed(receiver.items) if is_last else iter(receiver.items))
    return SequenceValue(tuple, list(receiver.items.pop(key)))


def _move_to_end(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    if receiver.class_ is not OrderedDict:
        raising(AttributeError)
    key, is_last = domain.hash_key(args[0]), _is_last(domain, args[1:], kwargs)
    if key not in receiver.items:
        raise UserRaise(ErrorValue(KeyError, [domain.state.see(args[0])]))
    domain.state.effects.will_change(receiver)
    moved = receiver.items.pop(key)
    rest = dict(receiver.items)
    if is_last:
        receiver.items[key] = moved
    else:
        receiver.items.clear()
        receiver.items |= {key: moved, **rest}
    return _nothing()


def _set_default(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    key = domain.hash_key(args[0])
    if key not in receiver.items:
        domain.put(receiver, args[0], args[1] if len(args) > 1 else _nothing())
    return receiver.items[key][1]


def _update(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    pairs = domain.pairs_of(args[0]) if args else []
    pairs = [*pairs, *((ConstantValue(name), value) for name, value in kwargs.items())]
    for key, _ in pairs:
        domain.hash_key(key)  # breaks or raises before anything is changed
    for key, value in pairs:
        domain.put(receiver, key, value)
    return _nothing()


def _missing(domain: Any, receiver: DictValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.missing_item(receiver, args[0])


def _isdisjoint(domain: Any, receiver: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.method_of_set(domain.set_of(set, receiver), "isdisjoint", args)


_TUPLE_METHODS: dict[str, Method] = {
    "index": _index_of, "count": _count_of, "numel": _product, "__len__": _length, "__contains__": _contains,
    "__getitem__": _get_item, "__iter__": _iterator,
}  # fmt: skip
_LIST_METHODS: dict[str, Method] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "reverse": _reverse, "clear": _clear,
    "copy": _copy_of_list, "index": _index_of, "count": _count_of, "remove": _remove, "sort": _sort, "__len__": _length,
    "__contains__": _contains, "__getitem__": _get_item, "__setitem__": _set_item, "__iter__": _iterator,
}  # fmt: skip
_DEQUE_METHODS: dict[str, Method] = {
    "append": _append_to_deque, "appendleft": _append_left, "extend": _extend, "extendleft": _extend_left, "insert": _insert,
    "pop": lambda domain, receiver, args, kwargs: _wrong("pop") if args else _pop(domain, receiver, args, kwargs),
    "popleft": _pop_left, "rotate": _rotate, "reverse": _reverse, "clear": _clear, "copy": _copy_of_deque, "index": _index_of,
    "count": _count_of, "remove": _remove, "__len__": _length, "__contains__": _contains, "__getitem__": _get_item,
    "__setitem__": _set_item, "__iter__": _iterator,
}  # fmt: skip
_DICT_METHODS: dict[str, Method] = {
    "get": _get, "keys": _view("keys"), "values": _view("values"), "items": _view("items"), "pop": _dict_pop,
    "popitem": _pop_item, "move_to_end": _move_to_end, "setdefault": _set_default, "update": _update, "clear": _clear,
    "copy": _copy_of_dict, "__len__": _length, "__contains__": _contains, "__getitem__": _get_item, "__setitem__": _set_item,
    "__missing__": _missing, "__iter__": _iterator,
}  # fmt: skip
_WITH_KEYWORDS = frozenset(["sort", "update", "popitem", "move_to_end"])
_COUNTS = {
    "append": (1, 1), "appendleft": (1, 1), "extend": (1, 1), "extendleft": (1, 1), "insert": (2, 2), "remove": (1, 1),
    "popleft": (0, 0), "rotate": (0, 1), "reverse": (0, 0), "clear": (0, 0), "copy": (0, 0), "index": (1, 3), "count": (1, 1),
    "get": (1, 2), "setdefault": (1, 2), "update": (0, 1), "sort": (0, 0), "__len__": (0, 0), "__contains__": (1, 1),
    "__getitem__": (1, 1), "__setitem__": (2, 2), "__missing__": (1, 1), "keys": (0, 0), "values": (0, 0), "items": (0, 0),
    "move_to_end": (1, 2), "pop": (0, 2), "popitem": (0, 1), "__iter__": (0, 0), "numel": (0, 0),
}  # fmt: skip
