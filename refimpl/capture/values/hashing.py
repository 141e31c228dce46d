"""The keys under which dict and set values store their items.

Counterpart: torch/_dynamo/variables/dicts.py is_hashable
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch

from refimpl._torch import OpOverload, OpOverloadPacket
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
_THEIR_OWN_KEYS = (
    FunctionType, BuiltinFunctionType, ModuleType, MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType,
    MethodWrapperType, OpOverload, OpOverloadPacket,
)  # fmt: skip
_NATIVE_HASHES = tuple(class_.__hash__ for class_ in (Enum, int, str, object))
_NATIVE_EQUALITIES = tuple(class_.__eq__ for class_ in (int, str, object))


class Member:
    """The key of an item that is compared by identity. Its place in a hash table is not known before the run."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True, slots=True)
class Fields:
    """The key of an instance of a frozen dataclass: equal for instances of one class with equal fields. `value`: the instance."""

    class_: type
    keys: tuple[Any, ...]
    value: Value = field(compare=False)


def hashed_by_fields(class_: type) -> tuple[str, ...] | None:
    """The fields by which instances of a frozen dataclass are hashed and compared; None where a method of the program does."""
    parameters = class_.__dict__.get("__dataclass_params__")
    made: list[Any] = [class_.__dict__.get(name) for name in ("__hash__", "__eq__")]
    # `dataclass` compiles the methods from text. Those of the program have a file.
    is_generated = all(is_a(method, FunctionType) and method.__code__.co_filename == "<string>" for method in made)
    if parameters is None or not (parameters.frozen and parameters.eq and is_generated):
        return None
    fields = dataclasses.fields(class_)
    if any(found.hash is not None and found.hash is not found.compare for found in fields):
        return None
    return tuple(found.name for found in fields if found.compare)


def frozen_fields(class_: type) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass whose generated `__init__` sets each to what it is given, and does nothing else; None for
    other classes.
    """
    own: Any = class_.__dict__
    parameters, init = own.get("__dataclass_params__"), own.get("__init__")
    is_generated = is_a(init, FunctionType) and init.__code__.co_filename == "<string>"
    if parameters is None or not parameters.frozen or not is_generated or hasattr(class_, "__post_init__"):
        return None
    made: Any = class_
    if class_.__new__ is not object.__new__ or type(class_).__call__ is not type.__call__ or not class_.__dictoffset__:
        return None
    fields, code = dataclasses.fields(made), init.__code__
    takes_all = code.co_argcount + code.co_kwonlyargcount == 1 + len(fields)  # and no InitVar
    return tuple(found.name for found in fields) if takes_all and all(found.init for found in fields) else None


def is_ordered_key(key: Any) -> bool:
    """Whether the key has the same hash as the real object, so that a set of keys has the real set's order."""
    return all(map(is_ordered_key, key)) if type(key) in (tuple, frozenset) else type(key) not in (Member, Fields)


def has_own_key(object_: Any) -> bool:
    """Whether an object serves as its own key: it is compared by identity or is an enum member, without code of the user's."""
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
    """Whether instances of the class are compared by identity. (For a class object, ask about its metaclass.)"""
    return class_.__hash__ in (object.__hash__, type.__hash__) and class_.__eq__ in (object.__eq__, type.__eq__)


def is_constant_key(key: Any) -> bool:
    """Whether equal objects are one key, which a guard can contain."""
    if type(key) is float:
        return key == key and key != 0  # 0.0 and -0.0 are equal, but iterating gives one of them
    return all(map(is_constant_key, key)) if type(key) is tuple else type(key) in CONSTANT_KEYS


def is_known_key(key: Any) -> bool:
    """Whether a guard on the keys of a container determines the key."""
    return is_constant_key(key) or has_own_key(key)
