"""Operators on objects of the program's classes: their special methods are inlined, in the order in which Python calls them.

Counterpart: torch/_dynamo/variables/user_defined.py, builtin.py _binop_handlers
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl.capture.values import polyfills
from refimpl.capture.values.classes import MISSING, combines_as_flag, finds_plainly, in_mro, is_named_tuple
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.mapping import DictValue
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.program_object import method_of_class
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.set import SetValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import Value, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_BINARY = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul", "<<": "lshift",
    ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
# Sign -> stems of the method of the left operand and of the right one: `x < y` is `y > x`.
_COMPARED = {
    sign: (stem, stem.translate(str.maketrans("lg", "gl")))
    for sign, stem in {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}.items()
}
_OPERATORS = [f"__{name}__" for stem in _BINARY.values() for name in (stem, f"r{stem}", f"i{stem}")] + [
    f"__{name}__" for pair in _COMPARED.values() for name in pair
]
# Attributes that torch, or an operator written in C, looks up before it returns NotImplemented for an object.
_ASKED = ("__torch_function__", "__getattr__", "__array__")
_KNOWN_TO_TORCH = (int, float, complex, str, tuple, list, torch.Tensor)


def binary_of_objects(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
    """`left + right` or `left += right`."""
    plain_left, plain_right = left.plain_of_member(), right.plain_of_member()
    if sign in ("&", "|", "^") and isinstance(left, ObjectValue) and combines_as_flag(left.object):
        is_of_class = isinstance(right, ObjectValue) and type(right.object) is type(left.object)
        plain_left, plain_right = (left, right) if is_of_class else (plain_left, plain_right)
    if sign == "%" and isinstance(left, ConstantValue) and type(left.value) is str and plain_right is not right:
        unsupported("`%`", right)  # which formats it by its `__str__`
    if plain_left is not left or plain_right is not right:
        _check_members(left, right)
        return domain.binary(sign, plain_left, plain_right)
    if (sign == "+=" and isinstance(left, SequenceValue)) or (sign == "|=" and isinstance(left, DictValue)):
        return left.binary(domain, sign, left, right)  # `list.__iadd__` and `dict.__ior__` take any iterable
    plain = sign.removesuffix("=")
    stem = _BINARY[plain]
    asked: list[Value] = []
    in_place = method_of_class(domain, left, f"__i{stem}__", is_first=True) if sign != plain else None
    if in_place is not None:
        asked.append(_call(in_place, left, right))
    forward, backward = method_of_class(domain, left, f"__{stem}__"), None
    if left.class_of_operand() is not right.class_of_operand() or not right.is_object:
        backward = method_of_class(domain, right, f"__r{stem}__")
    if forward is None and not left.is_object:
        _check_refusal(plain, left, right)
    elif backward is None and not right.is_object and forward is None:
        _check_refusal(plain, right, left)
    calls = [_call(forward, left, right)] if forward is not None else []
    if backward is not None:
        reflected = _call(backward, right, left)
        calls = [reflected, *calls] if _is_first(left, right, f"__r{stem}__") else [*calls, reflected]
    asked += calls
    if not asked:
        raising(TypeError)
    return domain.enter_polyfill(polyfills.first_of, [SequenceValue(tuple, asked)])


def _check_members(*sides: Value) -> None:
    """Checks that an enum member which is a number has the operators of numbers: its class must not define any."""
    for side in sides:
        for base in side.class_of_operand().__mro__ if side.is_object else ():
            if any(isinstance(base.__dict__.get(name), FunctionType) for name in _OPERATORS):
                unsupported("an operator", side)


def _is_first(left: Value, right: Value, name: str) -> bool:
    """Whether Python calls the right operand's method first: its class derives from the left one's and overrides the method."""
    above, below = left.class_of_operand(), right.class_of_operand()
    return below is not above and above in below.__mro__ and in_mro(below, name) is not in_mro(above, name)


def _check_refusal(sign: str, native: Value, other: Value) -> None:
    """Checks that a native operand returns NotImplemented for the other one, without calling code of the other one's class."""
    class_ = other.class_of_operand()
    if isinstance(native, TensorValue):
        is_fine = finds_plainly(class_) and not issubclass(class_, _KNOWN_TO_TORCH)
        is_fine = is_fine and all(in_mro(class_, name) is MISSING for name in _ASKED)
    elif isinstance(native, ConstantValue):
        is_fine = (
            not (sign == "%" and type(native.value) in (str, bytes)) and type(native.value).__module__ == "builtins"
        )
        is_fine = is_fine and not (type(native.value) in (str, bytes) and in_mro(class_, "__index__") is not MISSING)
    elif isinstance(native, (SequenceValue, DictValue, SetValue)):
        is_fine = in_mro(class_, "__index__") is MISSING and not is_named_tuple(native.class_)
    else:
        is_fine = False
    if not is_fine:
        unsupported(f"`{sign}` with an object", native)


def compare_objects(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
    """`left < right` and its like."""
    plain_left, plain_right = left.plain_of_member(), right.plain_of_member()
    if plain_left is not left or plain_right is not right:
        _check_members(left, right)
        return domain.compare(sign, plain_left, plain_right)
    forward, backward = _COMPARED[sign]
    calls: list[Value] = [*_comparing(domain, left, right, sign, forward)]
    if left is not right or sign not in ("==", "!="):
        reflected = _comparing(domain, right, left, sign, backward)
        above, below = left.class_of_operand(), right.class_of_operand()
        is_first = below is not above and above in below.__mro__ and above is not object
        calls = [*reflected, *calls] if is_first else [*calls, *reflected]
    if sign not in ("==", "!="):
        if not calls:
            raising(TypeError)
        return domain.enter_polyfill(polyfills.first_of, [SequenceValue(tuple, [_shortened(call) for call in calls])])
    is_one = left is right or (
        isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and left.object is right.object
    )
    otherwise = ConstantValue(is_one is (sign == "=="))
    if not calls:
        return _by_identity(domain, left, right, sign)
    return domain.enter_polyfill(polyfills.equal_by, [SequenceValue(tuple, calls), otherwise])


def _by_identity(domain: SymbolicDomain, left: Value, right: Value, sign: str) -> Value:
    same = domain.same_or_equal(left, right)
    return unsupported(f"`{sign}`", left) if same is None else ConstantValue(same is (sign == "=="))


def _comparing(domain: SymbolicDomain, value: Value, other: Value, sign: str, stem: str) -> list[SequenceValue]:
    """The call of the value's comparison method, with whether its answer is inverted; an empty list if the class only compares
    identity.
    """
    if not value.is_object:
        if isinstance(value, TensorValue):
            _check_refusal(sign, value, other)
        elif not isinstance(value, (ConstantValue, SequenceValue, DictValue, SetValue, ObjectValue)):
            unsupported(f"`{sign}`", value)
        return []
    class_, name = value.class_of_operand(), f"__{stem}__"
    found, is_inverted = in_mro(class_, name), False
    if sign == "!=" and found is object.__ne__:
        name, is_inverted = "__eq__", True
        found = in_mro(class_, name)
    if found is object.__eq__ or found is getattr(object, name):
        return []  # compares identity only
    method = value.special(domain, name)
    if method is None:
        unsupported(name, value)
    return [SequenceValue(tuple, [method.function, value, other, ConstantValue(is_inverted)])]


def _call(function: Value, left: Value, right: Value) -> SequenceValue:
    return SequenceValue(tuple, [function, left, right])


def _shortened(call: Any) -> SequenceValue:
    return SequenceValue(tuple, call.items[:3])
