"""What dicts and sets find their elements by.

Counterpart: torch/_dynamo/variables/dicts.py is_hashable, HashableTracker
Differs: constants, classes, functions and members of enumerations are their own keys, so that a table filled with keys has the
order of the program's; everything else that is compared by identity is found by its value here.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import is_named_tuple
from refimpl.capture.symbolic.keys import CONSTANT_KEYS, Member, has_own_key, is_compared_by_identity
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DictValue,
    FunctionValue,
    InstanceValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)


class SymbolicKeys(SymbolicBase):
    """Keys of values."""

    def hash_key(self, key: Value) -> Any:
        """What a dict or set finds a key by. Raises TypeError of the program for what has no hash."""
        key = self.state.see(key)
        if isinstance(key, NumberValue):
            key = self.state.specialised(key)
        match key:
            case ConstantValue() if type(key.value) in (*CONSTANT_KEYS, frozenset, CodeType):
                return key.value
            case ConstantValue() if type(key.value) is float and key.value == key.value:
                return key.value
            case SequenceValue() if key.class_ in (tuple, torch.Size) or is_named_tuple(key.class_):
                return tuple(self.hash_key(item) for item in key.items)
            case SetValue() if key.class_ is frozenset:
                return key.real
            case SequenceValue() | SetValue() | DictValue() if key.class_.__hash__ is None:
                raising(TypeError, f"unhashable type: '{key.class_.__name__}'")
            case ObjectValue() if has_own_key(key.object):
                return key.object
            case ObjectValue() if is_compared_by_identity(type(key.object)):
                self.state.note_key(key)
                return Member(key)
            case InstanceValue() if is_compared_by_identity(key.class_):
                return Member(key)
            case TensorValue() if self.state.is_first_of_its_fake(key):
                return Member(key)
            case FunctionValue() | PartialValue():
                return Member(key)
            case _:
                unsupported("a key", key)

    def key_value(self, key: Any) -> Value:
        """The value of a key that is its own."""
        match key:
            case Member():
                return key.value
            case tuple():
                return SequenceValue(tuple, [self.key_value(item) for item in key])
            case _:
                return ObjectValue(key) if has_own_key(key) else ConstantValue(key)
