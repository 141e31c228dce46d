"""Comparisons of containers, part by part, and orders of constants.

Counterpart: torch/_dynamo/variables/lists.py BaseListVariable, polyfills list_cmp
Differs: parts that only code of the user's can compare are compared by Python that is interpreted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import is_named_tuple
from refimpl.capture.symbolic.container_methods import method_of_container
from refimpl.capture.symbolic.keys import has_own_key
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DequeValue,
    DictValue,
    DictViewValue,
    InstanceValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)

_MOST_ITEMS = 100_000
_WITHOUT_TENSORS = (type(None), str, bytes)  # a tensor and one of these are not equal
_PLAIN_EQUALITY = (object.__eq__, type.__eq__)


def kind_of_sequence(value: SequenceValue) -> type | None:
    """By what class a comparison of sequences goes; None where it is not known."""
    if value.class_ in (tuple, torch.Size) or is_named_tuple(value.class_):
        return tuple
    return value.class_ if value.class_ in (list, deque) else None


class SymbolicComparisons(SymbolicBase):
    """`==` and `<` of containers."""

    def same_or_equal(self, left: Any, right: Any) -> bool | None:
        """`left is right or left == right`, as containers compare their parts; None where code of the user's has to be run."""
        left, right = self.state.see(left), self.state.see(right)
        if left is right:
            return True
        if isinstance(left, NumberValue) or isinstance(right, NumberValue):
            return self._equal_numbers(left, right)
        match left, right:
            case ConstantValue(), ConstantValue():
                return self._equal_constants(left.value, right.value)
            case (TensorValue(), _) | (_, TensorValue()):
                return self._equal_tensors(left, right)
            case SequenceValue(), SequenceValue():
                return self._equal_sequences(left, right)
            case DictValue(), DictValue():
                return self._equal_dicts(left, right)
            case (SetValue(), SetValue() | ConstantValue()) | (ConstantValue(), SetValue()):
                return self.compare_sets("==", left, right).value
            case (SequenceValue() | DictValue(), ConstantValue()) | (ConstantValue(), SequenceValue() | DictValue()):
                return False
            case (SequenceValue(), DictValue() | SetValue()) | (DictValue() | SetValue(), SequenceValue()):
                return False
            case _ if self._is_compared_by_identity(left) and self._is_compared_by_identity(right):
                return self._identical_objects(left, right)
            case _:
                return None

    def _equal_numbers(self, left: Value, right: Value) -> bool:
        if all(isinstance(side, NumberValue) or _is_plain_number(side) for side in (left, right)):
            return self.truth(self.compare("==", left, right)) is True
        return (
            False if isinstance(left, ConstantValue) or isinstance(right, ConstantValue) else unsupported("`==`", left)
        )

    def _equal_constants(self, left: Any, right: Any) -> bool:
        if left is right and left == left:
            return True
        if left != left or right != right:
            unsupported("`==` of what is no number", ConstantValue(left))
        return left == right

    def _equal_tensors(self, left: Value, right: Value) -> bool:
        other = right if isinstance(left, TensorValue) else left
        if isinstance(other, ConstantValue) and type(other.value) in _WITHOUT_TENSORS:
            return False
        raise GraphBreak("branch_on_tensor", what="`==` of parts of containers")

    def _equal_sequences(self, left: SequenceValue, right: SequenceValue) -> bool | None:
        kinds = kind_of_sequence(left), kind_of_sequence(right)
        if None in kinds:
            return None
        if kinds[0] is not kinds[1] or len(left.items) != len(right.items):
            return False
        for a, b in zip(left.items, right.items, strict=True):
            if (same := self.same_or_equal(a, b)) is not True:
                return same
        return True

    def _equal_dicts(self, left: DictValue, right: DictValue) -> bool | None:
        if len(left.items) != len(right.items):
            return False
        if (
            left.class_ is right.class_ is OrderedDict
            and [*left.items] != [*right.items]
            and left.items.keys() == right.items.keys()
        ):
            return False
        for key, (_, value) in left.items.items():
            if key not in right.items:
                return False
            if (same := self.same_or_equal(value, right.items[key][1])) is not True:
                return same
        return True

    def _is_compared_by_identity(self, value: Value) -> bool:
        """Whether `==` asks for identity, or is between classes that are never equal."""
        match value:
            case ObjectValue():
                return any(type(value.object).__eq__ is known for known in _PLAIN_EQUALITY)
            case InstanceValue():
                return value.class_.__eq__ is object.__eq__
            case ConstantValue() | SequenceValue() | DictValue() | SetValue():
                return True
            case _:
                return False

    def _identical_objects(self, left: Value, right: Value) -> bool:
        """Of values that are not one: whether they are one object."""
        if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
            if left.object is right.object:
                return True
            for side in (left, right):
                if not has_own_key(side.object):
                    self.state.note_key(side)
        return False

    def compare_containers(self, sign: str, left: Value, right: Value) -> Any:
        """A comparison where one side is a sequence, dict or view that is no constant."""
        if sign in ("==", "!="):
            same = self.same_or_equal(left, right)
            if same is None and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
                return self.enter_polyfill(polyfills.equal_sequences, [left, right, ConstantValue(sign == "==")])
            if same is None and isinstance(left, DictValue) and isinstance(right, DictValue):
                return self.enter_polyfill(polyfills.equal_dicts, [left, right, ConstantValue(sign == "==")])
            return unsupported(f"`{sign}`", left) if same is None else ConstantValue(same is (sign == "=="))
        if not isinstance(left, SequenceValue) or not isinstance(right, SequenceValue):
            unsupported(f"`{sign}`", left if isinstance(left, DictViewValue | DictValue) else right)
        kind = kind_of_sequence(left)
        if kind is None or kind is not kind_of_sequence(right):
            unsupported(f"`{sign}`", left)
        for a, b in zip(left.items, right.items, strict=False):
            same = self.same_or_equal(a, b)
            if same is None:
                unsupported(f"`{sign}`", left)
            if not same:
                return self.compare(sign, a, b)
        return self.compare(sign, ConstantValue(len(left.items)), ConstantValue(len(right.items)))

    def binary_of_containers(self, sign: str, left: Value, right: Value) -> Any:
        """`+`, `*`, `|` and their like, where one side is a container."""
        if self.is_like_set(left) or self.is_like_set(right):
            return self.binary_of_sets(sign, left, right)
        match sign, left, right:
            case "+=", SequenceValue(), _ if left.class_ in (list, deque):
                if self.runs_code(right):
                    return self.enter_polyfill(polyfills.extended_in_place, [left, right])
                method_of_container(self, left, "extend", [right], {})
                return left
            case (("+" | "+="), SequenceValue(), SequenceValue()):
                return self._joined(sign, left, right)
            case (("*" | "*="), SequenceValue(), ConstantValue()) if type(right.value) in (int, bool):
                return self._repeated(sign, left, right.value)
            case "*", ConstantValue(), SequenceValue() if type(left.value) in (int, bool):
                return self._repeated(sign, right, left.value)
            case "|=", DictValue(), _:
                pairs = self.pairs_of(right)
                for key, _ in pairs:
                    self.hash_key(key)  # breaks or raises before anything is changed
                for key, value in pairs:
                    self.put(left, key, value)
                return left
            case "|", DictValue(), DictValue() if left.class_ is right.class_:
                made = method_of_container(self, left, "copy", [], {})
                for key, value in right.items.values():
                    self.put(made, key, value)
                return made
            case _:
                unsupported(f"`{sign}`", left if not isinstance(left, ConstantValue) else right)

    def _joined(self, sign: str, left: SequenceValue, right: SequenceValue) -> Value:
        items = [*left.items, *right.items]
        if left.class_ is right.class_ is list:
            return SequenceValue(list, items)
        if kind_of_sequence(left) is tuple and kind_of_sequence(right) is tuple:
            return SequenceValue(torch.Size if torch.Size in (left.class_, right.class_) else tuple, items)
        if isinstance(left, DequeValue) and isinstance(right, DequeValue) and left.maxlen is None:
            return DequeValue(items, None)
        if left.class_ in (list, tuple) and right.class_ in (list, tuple):
            raising(TypeError)
        unsupported(f"`{sign}`", left)

    def _repeated(self, sign: str, value: SequenceValue, times: int) -> Value:
        if len(value.items) * times > _MOST_ITEMS:
            raise GraphBreak("too_many_instructions", what=_MOST_ITEMS)
        if sign == "*=" and value.class_ is list:
            self.state.effects.will_change(value)
            value.items[:] = value.items * times
            return value
        if value.class_ not in (list, tuple, torch.Size):
            unsupported(f"`{sign}`", value)
        return SequenceValue(value.class_, value.items * times)

    def in_order(self, items: list[Value], keys: list[Value], reverse: Any = None) -> list[Value]:
        """The items sorted by keys that are constants. Breaks for other keys."""
        is_reversed = False if reverse is None else self.constant_of(reverse, "sorted")
        plain = [self.constant_of(key, "sorted") for key in keys]
        try:
            order = sorted(range(len(plain)), key=plain.__getitem__, reverse=bool(is_reversed))
        except TypeError as error:
            raise GraphBreak("op_raises_on_fake", what="sorted", error="TypeError") from error
        return [items[index] for index in order]


def _is_plain_number(value: Value) -> bool:
    return isinstance(value, ConstantValue) and type(value.value) in (int, float, bool)
