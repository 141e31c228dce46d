"""Keys that dicts and sets find elements by: which objects are their own, and which are found by their value here.

Counterpart: torch/_dynamo/variables/dicts.py is_hashable
"""

from __future__ import annotations

from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from refimpl.capture.values.classes import is_a
from refimpl.capture.values.value import Value

CONSTANT_KEYS = (
    str, int, bool, type(None), bytes, complex, type(...), type(NotImplemented), range, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip
CONSTANT_TYPES: tuple[type, ...] = (
    int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented), range, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
_THEIR_OWN_KEYS = (FunctionType, BuiltinFunctionType, ModuleType)
_NATIVE_HASHES = tuple(class_.__hash__ for class_ in (Enum, int, str, object))
_NATIVE_EQUALITIES = tuple(class_.__eq__ for class_ in (int, str, object))


class Member:
    """The key of an element that is compared by identity: where it stands in a table is not known before the run."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def is_ordered_key(key: Any) -> bool:
    """Whether the hash of the key is that of the element."""
    return all(map(is_ordered_key, key)) if type(key) in (tuple, frozenset) else type(key) is not Member


def has_own_key(object_: Any) -> bool:
    """Whether an object is its own key, and there is only one of it: hash and `==` are no code of the user's."""
    if is_a(object_, _THEIR_OWN_KEYS):
        return True
    if is_a(object_, type):
        return is_compared_by_identity(type(object_))
    class_ = type(object_)
    return (
        is_a(object_, Enum)
        and any(class_.__hash__ is known for known in _NATIVE_HASHES)
        and any(class_.__eq__ is known for known in _NATIVE_EQUALITIES)
    )


def is_compared_by_identity(class_: type) -> bool:
    """Whether `==` of instances asks for identity; for classes: of a metaclass."""
    return class_.__hash__ in (object.__hash__, type.__hash__) and class_.__eq__ in (object.__eq__, type.__eq__)


def is_constant_key(key: Any) -> bool:
    """Whether equal objects are one key, and can be written into a guard."""
    if type(key) is float:
        return key == key and key != 0  # the sign of zero is no part of the key, but of what iterating gives
    return all(map(is_constant_key, key)) if type(key) is tuple else type(key) in CONSTANT_KEYS
