"""Operators on objects of the program's classes: their methods are interpreted, in the order in which Python asks them.

Counterpart: torch/_dynamo/variables/user_defined.py, builtin.py _binop_handlers
"""

from __future__ import annotations

from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch

from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import MISSING, finds_plainly, in_mro, is_a, is_named_tuple
from refimpl.capture.symbolic.dict_objects import has_native_inside
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import (
    ConstantValue,
    DictValue,
    ErrorValue,
    InstanceValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    Value,
)

_BINARY = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "<<": "lshift",
    ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
_COMPARED = {
    "<": ("lt", "gt"),
    "<=": ("le", "ge"),
    ">": ("gt", "lt"),
    ">=": ("ge", "le"),
    "==": ("eq", "eq"),
    "!=": ("ne", "ne"),
}
_OPERATORS = [f"__{name}__" for stem in _BINARY.values() for name in (stem, f"r{stem}", f"i{stem}")] + [
    f"__{name}__" for pair in _COMPARED.values() for name in pair
]
_UNARY = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
# Where torch, or an operator of C, would look before it says that it does not know an object.
_ASKED = ("__torch_function__", "__getattr__", "__array__")
_KNOWN_TO_TORCH = (int, float, complex, str, tuple, list, torch.Tensor)
_PLAIN = (FunctionType, ModuleType, type)


class SymbolicObjectOperators(SymbolicBase):
    """`left + right`, `left < right`, `-value`, `item in value`, where a side is an object."""

    def is_object(self, value: Value) -> bool:
        """Whether a value is an instance of a class whose methods may be written in Python."""
        if isinstance(value, ObjectValue):
            return not is_a(value.object, _PLAIN) and type(value.object).__module__ != "builtins"
        return isinstance(value, InstanceValue) and not isinstance(value, ErrorValue)

    def _class_of(self, value: Value) -> type:
        match value:
            case InstanceValue():
                return value.class_
            case ObjectValue():
                return type(value.object)
            case ConstantValue():
                return type(value.value)
            case SequenceValue() | DictValue() | SetValue():
                return value.class_
            case _:
                return object

    def _method(self, value: Value, name: str) -> Value | None:
        """The function that the class has under the name, or None. Breaks for one that is not written in Python."""
        if not self.is_object(value):
            return None
        found = in_mro(self._class_of(value), name)
        if found is MISSING or found is None:
            return None
        method = self.special(value, name)
        return method.function if method is not None else unsupported(name, value)

    def binary_of_objects(self, sign: str, left: Value, right: Value) -> Any:
        """`left + right` or `left += right`."""
        plain_left, plain_right = self.plain_of_member(left), self.plain_of_member(right)
        if plain_left is not left or plain_right is not right:
            self._check_members(left, right)
            return self.binary(sign, plain_left, plain_right)
        plain = sign.removesuffix("=")
        stem = _BINARY[plain]
        asked: list[Value] = []
        in_place = self._method(left, f"__i{stem}__") if sign != plain else None
        if in_place is not None:
            asked.append(_call(in_place, left, right))
        forward, backward = self._method(left, f"__{stem}__"), None
        if self._class_of(left) is not self._class_of(right) or not self.is_object(right):
            backward = self._method(right, f"__r{stem}__")
        if forward is None and not self.is_object(left):
            self._check_refusal(plain, left, right)
        elif backward is None and not self.is_object(right) and forward is None:
            self._check_refusal(plain, right, left)
        calls = [_call(forward, left, right)] if forward is not None else []
        if backward is not None:
            reflected = _call(backward, right, left)
            calls = [reflected, *calls] if self._is_first(left, right, f"__r{stem}__") else [*calls, reflected]
        asked += calls
        if not asked:
            raising(TypeError)
        return self.enter_polyfill(polyfills.first_of, [SequenceValue(tuple, asked)])

    def _check_members(self, *sides: Value) -> None:
        """A number that is a member of an enumeration has the operators of numbers, unless its class has others."""
        for side in sides:
            for base in self._class_of(side).__mro__ if self.is_object(side) else ():
                if any(isinstance(base.__dict__.get(name), FunctionType) for name in _OPERATORS):
                    unsupported("an operator", side)

    def _is_first(self, left: Value, right: Value, name: str) -> bool:
        """Whether the right side is asked first: its class derives from the left one's, and has another method."""
        above, below = self._class_of(left), self._class_of(right)
        return below is not above and issubclass(below, above) and in_mro(below, name) is not in_mro(above, name)

    def _check_refusal(self, sign: str, native: Value, other: Value) -> None:
        """A native side has to say that it does not know the other one, and to ask it for nothing."""
        class_ = self._class_of(other)
        if isinstance(native, TensorValue):
            is_fine = finds_plainly(class_) and not issubclass(class_, _KNOWN_TO_TORCH)
            is_fine = is_fine and all(in_mro(class_, name) is MISSING for name in _ASKED)
        elif isinstance(native, ConstantValue):
            is_fine = (
                not (sign == "%" and type(native.value) in (str, bytes)) and type(native.value).__module__ == "builtins"
            )
            is_fine = is_fine and not (
                type(native.value) in (str, bytes) and in_mro(class_, "__index__") is not MISSING
            )
        elif isinstance(native, (SequenceValue, DictValue, SetValue)):
            is_fine = in_mro(class_, "__index__") is MISSING and not is_named_tuple(native.class_)
        else:
            is_fine = False
        if not is_fine:
            unsupported(f"`{sign}` with an object", native)

    def compare_objects(self, sign: str, left: Value, right: Value) -> Any:
        """`left < right` and its like."""
        plain_left, plain_right = self.plain_of_member(left), self.plain_of_member(right)
        if plain_left is not left or plain_right is not right:
            self._check_members(left, right)
            return self.compare(sign, plain_left, plain_right)
        forward, backward = _COMPARED[sign]
        calls: list[Value] = [*self._comparing(left, right, sign, forward)]
        if left is not right or sign not in ("==", "!="):
            reflected = self._comparing(right, left, sign, backward)
            above, below = self._class_of(left), self._class_of(right)
            is_first = below is not above and issubclass(below, above) and above is not object
            calls = [*reflected, *calls] if is_first else [*calls, *reflected]
        if sign not in ("==", "!="):
            if not calls:
                raising(TypeError)
            return self.enter_polyfill(polyfills.first_of, [SequenceValue(tuple, [_shortened(call) for call in calls])])
        is_one = left is right or (
            isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and left.object is right.object
        )
        otherwise = ConstantValue(is_one is (sign == "=="))
        if not calls:
            return self._by_identity(left, right, sign)
        return self.enter_polyfill(polyfills.equal_by, [SequenceValue(tuple, calls), otherwise])

    def _by_identity(self, left: Value, right: Value, sign: str) -> Value:
        same = self.same_or_equal(left, right)
        return unsupported(f"`{sign}`", left) if same is None else ConstantValue(same is (sign == "=="))

    def _comparing(self, value: Value, other: Value, sign: str, stem: str) -> list[SequenceValue]:
        """The call of a method of the value's class, with whether its answer is inverted; none where it does not know."""
        if not self.is_object(value):
            if isinstance(value, TensorValue):
                self._check_refusal(sign, value, other)
            elif not isinstance(value, (ConstantValue, SequenceValue, DictValue, SetValue, ObjectValue)):
                unsupported(f"`{sign}`", value)
            return []
        class_, name = self._class_of(value), f"__{stem}__"
        found, is_inverted = in_mro(class_, name), False
        if sign == "!=" and found is object.__ne__:
            name, is_inverted = "__eq__", True
            found = in_mro(class_, name)
        if found is object.__eq__ or found is getattr(object, name):
            return []  # knows identity only
        method = self.special(value, name)
        if method is None:
            unsupported(name, value)
        return [SequenceValue(tuple, [method.function, value, other, ConstantValue(is_inverted)])]

    def unary_of_object(self, sign: str, value: Value) -> Any:
        """`-value`, `+value`, `~value`."""
        return self.call_special(value, _UNARY[sign], [])

    def object_contains(self, item: Value, container: Value, inverted: bool) -> Any:
        """`item in container` of an object or a class."""
        if isinstance(container, ObjectValue) and is_a(container.object, type(Enum)):
            return ConstantValue(self._is_member(item, container.object) is not inverted)
        if has_native_inside(container, "__contains__"):
            return ConstantValue(self.native_special(container, "__contains__", [item]).value is not inverted)
        method = self._method(container, "__contains__")
        if method is not None:
            given = [method, container, item, ConstantValue(not inverted)]
            return self.enter_polyfill(polyfills.contained_by, given)
        if not self.runs_code(container):
            unsupported("`in`", container)
        return self.enter_polyfill(polyfills.contained, [container, item, ConstantValue(not inverted)])

    def _is_member(self, item: Value, class_: Any) -> bool:
        if not isinstance(item, ObjectValue) or type(class_).__contains__ is not type(Enum).__contains__:
            unsupported("`in`", item)
        return any(item.object is member for member in class_._member_map_.values())


def _call(function: Value, left: Value, right: Value) -> SequenceValue:
    return SequenceValue(tuple, [function, left, right])


def _shortened(call: Any) -> SequenceValue:
    return SequenceValue(tuple, call.items[:3])
