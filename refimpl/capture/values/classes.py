"""What classes define, asked without running code of the user's."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from enum import EnumMeta
from types import SimpleNamespace, UnionType, WrapperDescriptorType
from typing import Any

MISSING = object()
_OF_NAMED_TUPLES = frozenset(
    ["__new__", "__repr__", "__str__", "__getnewargs__", "__replace__", "__annotate__", "__annotate_func__"]
)
_BUILTINS = (
    object, dict, list, tuple, set, frozenset, int, float, str, bytes, OrderedDict, defaultdict, deque, SimpleNamespace,
    BaseException,
)  # fmt: skip


def is_a(object_: Any, kinds: Any) -> bool:
    """`isinstance` by class alone: an object is not asked for its `__class__`, which may be code of the user's."""
    return issubclass(type(object_), kinds)


def in_mro(class_: type, name: str) -> Any:
    """What a class or its bases define under the name; MISSING if nothing."""
    for base in class_.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def is_plain_class(object_: Any) -> bool:
    """Whether it is a class, or a union of some, and `|` gives a union."""
    return is_a(object_, UnionType) or (is_a(object_, type) and type(object_).__or__ is type.__or__)


def is_enumeration(object_: Any) -> bool:
    """Whether it is a class of enum's making, which iterates over its members."""
    return (
        is_a(object_, EnumMeta)
        and type(object_).__iter__ is EnumMeta.__iter__
        and type(object_).__len__ is EnumMeta.__len__
    )


def is_named_tuple(class_: type) -> bool:
    """Whether a class is one that `collections.namedtuple` made, or derives from one without another constructor."""
    made = next((base for base in class_.__mro__ if "_fields" in base.__dict__ and base.__base__ is tuple), None)
    return (
        made is not None
        and isinstance(made.__dict__["_fields"], tuple)
        and class_.__new__ is made.__new__
        and type(class_).__call__ is type.__call__
        and not any(_says_what_it_is(base) for base in class_.__mro__[: class_.__mro__.index(tuple)])
    )


def _says_what_it_is(class_: type) -> bool:
    """Whether a class has special methods of its own, other than those that every named tuple has."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _OF_NAMED_TUPLES and callable(found)
        for name, found in class_.__dict__.items()
    )


def finds_plainly(class_: type) -> bool:
    """Whether attributes are found as `object.__getattribute__` finds them; builtin classes have the same by another name."""
    getter = class_.__getattribute__
    return isinstance(getter, WrapperDescriptorType) and getter.__objclass__ in _BUILTINS
