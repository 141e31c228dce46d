"""Equality of the items of containers, and comparison of containers item by item.

Counterpart: torch/_dynamo/variables/lists.py BaseListVariable, polyfills list_cmp
Differs: items whose comparison runs code of the user's are compared by a polyfill, which is interpreted.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.values import polyfills
from refimpl.capture.values.constant import ConstantValue, NumberValue, is_number
from refimpl.capture.values.hashing import has_own_key
from refimpl.capture.values.mapping import DictValue, DictViewValue
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.set import SetValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_NEVER_A_NUMBER = (ConstantValue, SequenceValue, DictValue, SetValue)  # constants that are no numbers
_WITHOUT_TENSORS = (type(None), str, bytes)  # never equal to a tensor


def same_or_equal(domain: SymbolicDomain, left: Any, right: Any) -> bool | None:
    """`left is right or left == right`, as containers compare items; None if that needs code of the user's."""
    left, right = domain.state.realize(left), domain.state.realize(right)
    if left is right:
        return True
    if isinstance(left, NumberValue) or isinstance(right, NumberValue):
        return _equal_numbers(domain, left, right)
    match left, right:
        case ConstantValue(), ConstantValue():
            return _equal_constants(left.value, right.value)
        case (TensorValue(), _) | (_, TensorValue()):
            return _equal_tensors(left, right)
        case SequenceValue(), SequenceValue():
            return _equal_sequences(domain, left, right)
        case DictValue(), DictValue():
            return _equal_dicts(domain, left, right)
        case (SetValue(), SetValue() | ConstantValue()) | (ConstantValue(), SetValue()):
            return domain.constant_of(domain.compare_sets("==", left, right), "==")
        case (SequenceValue() | DictValue(), ConstantValue()) | (ConstantValue(), SequenceValue() | DictValue()):
            return False
        case (SequenceValue(), DictValue() | SetValue()) | (DictValue() | SetValue(), SequenceValue()):
            return False
        case _ if left.equality_is_identity and right.equality_is_identity:
            return _identical_objects(domain, left, right)
        case _:
            return None


def _equal_numbers(domain: SymbolicDomain, left: Value, right: Value) -> bool:
    if all(is_number(side) for side in (left, right)):
        return domain.truth(domain.compare("==", left, right)) is True
    if any(isinstance(side, _NEVER_A_NUMBER) for side in (left, right)):
        return False
    return unsupported("`==`", left)


def _equal_constants(left: Any, right: Any) -> bool:
    if left is right and left == left:
        return True
    if left != left or right != right:
        unsupported("`==` of what is no number", ConstantValue(left))
    return left == right


def _equal_tensors(left: Value, right: Value) -> bool:
    other = right if isinstance(left, TensorValue) else left
    if isinstance(other, ConstantValue) and type(other.value) in _WITHOUT_TENSORS:
        return False
    raise GraphBreak("branch_on_tensor", what="`==` of parts of containers")


def _equal_sequences(domain: SymbolicDomain, left: SequenceValue, right: SequenceValue) -> bool | None:
    kinds = left.kind_of_sequence(), right.kind_of_sequence()
    if None in kinds:
        return None
    if kinds[0] is not kinds[1] or len(left.items) != len(right.items):
        return False
    for a, b in zip(left.items, right.items, strict=True):
        if (same := same_or_equal(domain, a, b)) is not True:
            return same
    return True


def _equal_dicts(domain: SymbolicDomain, left: DictValue, right: DictValue) -> bool | None:
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
        if (same := same_or_equal(domain, value, right.items[key][1])) is not True:
            return same
    return True


def _identical_objects(domain: SymbolicDomain, left: Value, right: Value) -> bool:
    """Whether two values are the same object."""
    if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
        if left.object is right.object:
            return True
        for side in (left, right):
            if not has_own_key(side.object):
                domain.state.note_key(side)
    return False


def compare_containers(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
    """A comparison in which one side is a sequence, dict or view."""
    if sign in ("==", "!="):
        same = same_or_equal(domain, left, right)
        if same is None and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
            return domain.enter_polyfill(polyfills.equal_sequences, [left, right, ConstantValue(sign == "==")])
        if same is None and isinstance(left, DictValue) and isinstance(right, DictValue):
            return domain.enter_polyfill(polyfills.equal_dicts, [left, right, ConstantValue(sign == "==")])
        return unsupported(f"`{sign}`", left) if same is None else ConstantValue(same is (sign == "=="))
    if not isinstance(left, SequenceValue) or not isinstance(right, SequenceValue):
        unsupported(f"`{sign}`", left if isinstance(left, DictViewValue | DictValue) else right)
    kind = left.kind_of_sequence()
    if kind is None or kind is not right.kind_of_sequence():
        unsupported(f"`{sign}`", left)
    for a, b in zip(left.items, right.items, strict=False):
        same = same_or_equal(domain, a, b)
        if same is None:
            unsupported(f"`{sign}`", left)
        if not same:
            return domain.compare(sign, a, b)
    return domain.compare(sign, ConstantValue(len(left.items)), ConstantValue(len(right.items)))
