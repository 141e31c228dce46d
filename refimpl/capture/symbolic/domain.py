"""The symbolic domain: answers of the loop's questions by values that stand for what is not known yet.

Counterpart: torch/_dynamo/symbolic_convert.py, torch/_dynamo/variables
Differs: what is not known is a graph break before the instruction, never an approximation; the instruction is then run by
CPython's rules, so a rule that is missing costs a graph and no right answer.
"""

from __future__ import annotations

from types import CellType, CodeType
from typing import Any, NoReturn

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import GlobalSource, KeptSource
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.attributes import SymbolicAttributes
from refimpl.capture.symbolic.calls import SymbolicCalls
from refimpl.capture.symbolic.classes import is_a, is_plain_class
from refimpl.capture.symbolic.comparisons import SymbolicComparisons
from refimpl.capture.symbolic.constant_calls import SymbolicConstants
from refimpl.capture.symbolic.containers import SymbolicContainers
from refimpl.capture.symbolic.dict_objects import SymbolicDictObjects
from refimpl.capture.symbolic.errors import SymbolicErrors
from refimpl.capture.symbolic.generator_calls import SymbolicGenerators
from refimpl.capture.symbolic.hashing import SymbolicKeys
from refimpl.capture.symbolic.instances import SymbolicInstances
from refimpl.capture.symbolic.lazy_iterators import SymbolicIterators
from refimpl.capture.symbolic.made_modules import SymbolicMadeModules
from refimpl.capture.symbolic.numpy_calls import SymbolicNumpy
from refimpl.capture.symbolic.object_operators import SymbolicObjectOperators
from refimpl.capture.symbolic.operators import CONSTANT_TYPES
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.regions import SymbolicRegions
from refimpl.capture.symbolic.sets import SymbolicSets
from refimpl.capture.symbolic.values import (
    ArrayValue,
    CellValue,
    ConstantValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    InstanceValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    TensorValue,
    UnreadValue,
    Value,
)
from refimpl.capture.symbolic.wrapping import CaptureState

_CONTAINERS = (SequenceValue, DictValue, DictViewValue, SetValue)
_PLAIN_EQUALITY = (object.__eq__, type.__eq__)


class SymbolicDomain(
    SymbolicKeys,
    SymbolicSets,
    SymbolicIterators,
    SymbolicComparisons,
    SymbolicConstants,
    SymbolicObjectOperators,
    SymbolicCalls,
    SymbolicDictObjects,
    SymbolicMadeModules,
    SymbolicNumpy,
    SymbolicErrors,
    SymbolicRegions,
    SymbolicGenerators,
    SymbolicInstances,
    SymbolicAttributes,
    SymbolicContainers,
):
    """Answers for the values of one segment."""

    def __init__(self, state: CaptureState) -> None:
        self.state = state
        self.taken = []

    # ------------------------------------------------------------------------------------------ constants and operators

    def is_constant(self, value: Any) -> bool:
        return type(value) in CONSTANT_TYPES or type(value) in (slice, frozenset, CodeType, torch.finfo, torch.iinfo)

    def constant(self, value: Any) -> Any:
        if type(value) is tuple:
            return SequenceValue(tuple, [self.constant(item) for item in value])
        return ConstantValue(value)

    def truth(self, value: Any) -> bool | Enter:
        value = self.state.see(value)
        match value:
            case ConstantValue():
                return bool(value.value)
            case SequenceValue() | DictValue():
                return bool(value.items)
            case SetValue():
                return bool(value.real)
            case DictViewValue():
                return bool(value.over.items)
            case TensorValue():
                raise GraphBreak("branch_on_tensor", what="bool(Tensor)")
            case ArrayValue():
                raise GraphBreak("branch_on_tensor", what=f"bool() of a {value.kind}")
            case ObjectValue():
                return self._truth_of_object(value)
            case NumberValue():
                return bool(self.state.specialised(value).value)
            case InstanceValue():
                return self._truth_of_class(value, value.class_)
            case _:
                return True

    def _truth_of_object(self, value: ObjectValue) -> bool | Enter:
        return True if is_a(value.object, type) else self._truth_of_class(value, type(value.object))

    def _truth_of_class(self, value: ObjectValue | InstanceValue, class_: type) -> bool | Enter:
        if not (hasattr(class_, "__bool__") or hasattr(class_, "__len__")):
            return True
        if hasattr(class_, "__bool__"):
            return self.call_special(value, "__bool__", [])
        length = self.call_special(value, "__len__", [])
        return bool(length.value) if isinstance(length, ConstantValue) else length

    def is_none(self, value: Any) -> bool:
        value = self.state.see(value)
        return isinstance(value, ConstantValue) and value.value is None

    def unary(self, sign: str, value: Any) -> Any:
        value = self.state.see(value)
        if sign == "not":
            truth = self.truth(value)
            return ConstantValue(not truth) if type(truth) is bool else self.enter_polyfill(polyfills.negated, [value])
        if isinstance(value, TensorValue):
            return self.state.operator(UNARY[sign], [value], {})
        if isinstance(value, ArrayValue):
            return self.array_operator(UNARY[sign], [value])
        if self.is_object(value):
            return self.unary_of_object(sign, value)
        if isinstance(value, NumberValue):
            return self.state.arithmetic(UNARY[sign], [value])
        return self.folded(UNARY[sign], [value], {})

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        left, right = self.state.see(left), self.state.see(right)
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            is_array = isinstance(left, ArrayValue) and not left.is_scalar
            return self.array_operator(BINARY[sign if is_array else sign.removesuffix("=")], [left, right])
        if self.is_object(left) or self.is_object(right):
            return self.binary_of_objects(sign, left, right)
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            # Numbers have no `+=` of their own: the statement is then `left = left + right`.
            plain = sign if isinstance(left, TensorValue) else sign.removesuffix("=")
            return self._tensor_binary(BINARY[plain], left, right)
        if isinstance(left, NumberValue) or isinstance(right, NumberValue):
            if _is_number(left) and _is_number(right):
                return self.state.arithmetic(BINARY[sign.removesuffix("=")], [left, right])
            left, right = self._known(left), self._known(right)
        match left, right:
            case ConstantValue(), ConstantValue():
                return self.folded(BINARY[sign], [left, right], {})
            case ConstantValue(), SequenceValue() if sign == "%" and isinstance(left.value, str):
                return self.folded(BINARY[sign], [left, right], {})
            case ObjectValue(), ObjectValue() | ConstantValue() if sign == "|" and is_plain_class(left.object):
                if isinstance(right, ObjectValue) and is_plain_class(right.object):
                    return ObjectValue(left.object | right.object)
                return ObjectValue(left.object | None) if self.is_none(right) else unsupported("`|`", left)
            case _:
                return self.binary_of_containers(sign, left, right)

    def _tensor_binary(self, function: Any, left: Value, right: Value) -> Value:
        for operand in (left, right):
            if isinstance(operand, (ObjectValue, DictValue)):
                unsupported("an operator on a tensor and it", operand)
        return self.state.operator(function, [left, right], {})

    def compare(self, sign: str, left: Any, right: Any) -> Any:
        left, right = self.state.see(left), self.state.see(right)
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            return self.array_operator(COMPARE[sign], [left, right])
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            other = right if isinstance(left, TensorValue) else left
            if isinstance(other, ConstantValue) and other.value is None:
                return ConstantValue(sign == "!=") if sign in ("==", "!=") else unsupported(f"`{sign}`", other)
            if self.is_object(other):
                return self.compare_objects(sign, left, right)
            return self._tensor_binary(COMPARE[sign], left, right)
        if isinstance(left, NumberValue) or isinstance(right, NumberValue):
            if _is_number(left) and _is_number(right):
                return self.state.arithmetic(COMPARE[sign], [left, right])
            left, right = self._known(left), self._known(right)
        if self.is_object(left) or self.is_object(right):
            return self.compare_objects(sign, left, right)
        if self.is_like_set(left) or self.is_like_set(right):
            return self.compare_sets(sign, left, right)
        if isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and sign in ("==", "!="):
            if type(left.object).__eq__ in _PLAIN_EQUALITY and type(right.object).__eq__ in _PLAIN_EQUALITY:
                return self.identical(left, right, sign == "!=")
            unsupported(f"`{sign}`", left)
        if isinstance(left, _CONTAINERS) or isinstance(right, _CONTAINERS):
            return self.compare_containers(sign, left, right)
        if isinstance(left, ObjectValue) and isinstance(right, ConstantValue) and sign in ("==", "!="):
            if type(left.object).__eq__ in _PLAIN_EQUALITY:
                return ConstantValue(sign == "!=")
        return self.folded(COMPARE[sign], [left, right], {})

    def _known(self, value: Value) -> Value:
        return self.state.specialised(value) if isinstance(value, NumberValue) else value

    def identical(self, left: Any, right: Any, inverted: bool) -> Any:
        left, right = self.state.see(left), self.state.see(right)
        same = left is right
        if not same and isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            same = left.value is right.value
            if not same and type(left.value) is type(right.value) and left.value == right.value:
                unsupported("`is` of equal constants", left)
        elif not same and isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
            same = left.object is right.object
        elif not same and isinstance(left, TensorValue) and isinstance(right, TensorValue) and left.fake is right.fake:
            unsupported("`is` of tensors of which one may be the other", left)
        if not same and left.source is not None and right.source is not None:
            if not isinstance(left, ConstantValue) and not isinstance(right, ConstantValue):
                self.state.guard(GuardKind.DISTINCT, left.source, right.source)
        return ConstantValue(same is not inverted)

    def convert(self, kind: str, value: Any) -> Any:
        if kind == "s" and isinstance(error := self.state.see(value), ErrorValue):
            return self.text_of_error(error)
        if self.is_object(self.state.see(value)):
            return self.text_of_object(kind, self.state.see(value))
        return self.folded({"s": str, "r": repr, "a": ascii}[kind], [value], {})

    def format(self, value: Any, spec: Any) -> Any:
        if spec is None and isinstance(error := self.state.see(value), ErrorValue):
            return self.text_of_error(error)
        if self.is_object(self.state.see(value)):
            return self._format_object(self.state.see(value), spec)
        return self.folded(format, [value] if spec is None else [value, spec], {})

    def _format_object(self, value: Value, spec: Any) -> Any:
        given = ConstantValue("") if spec is None else self.state.see(spec)
        if self.special(value, "__format__") is not None:
            return self.call_special(value, "__format__", [given])
        class_ = value.class_ if isinstance(value, InstanceValue) else type(getattr(value, "object"))
        plain = self.plain_of_member(value)
        if any(class_.__format__ is kind.__format__ for kind in (int, str, float)) and plain is not value:
            return self.folded(format, [plain, given], {})
        if class_.__format__ is not object.__format__ or self.constant_of(given, "a format"):
            unsupported("format()", value)
        return self.text_of_object("s", value)

    # ------------------------------------------------------------------------------------------------ variables and names

    def make_cell(self, value: Any) -> Any:
        return CellValue(value)

    def cell_value(self, cell: Any) -> Any:
        cell = self.state.see(cell)
        if not isinstance(cell, CellValue):
            unsupported("a variable of a closure", cell)
        if cell.source is None or cell.is_written:
            return cell.content
        real: CellType = self.state.object_of(cell)
        try:
            content = real.cell_contents
        except ValueError:
            raise GraphBreak("unsupported_operation", what="a variable without value", kind="cell") from None
        return self.state.content_of(cell, content)

    def set_cell(self, cell: Any, value: Any) -> None:
        cell = self.state.see(cell)
        if not isinstance(cell, CellValue):
            unsupported("an assignment to a variable of a closure", cell)
        self.state.effects.will_change(cell)
        cell.content, cell.is_written = value, True

    def load_global(self, frame: FrameState, name: str) -> Any:
        namespace = KeptSource(frame.globals, "G")
        if type(frame.globals) is not dict:
            raise GraphBreak("unsupported_operation", what="a global variable", kind=type(frame.globals).__name__)
        written = self.state.effects.global_(frame.globals, name)
        if written is not None:
            return written
        if name in frame.globals:
            return UnreadValue(frame.globals[name], GlobalSource(namespace, name))
        if name in frame.builtins:
            self.state.guard(GuardKind.LACKS, namespace, name)
            return self.state.wrap(frame.builtins[name], GlobalSource(KeptSource(frame.builtins, "builtins"), name))
        self.state.guard(GuardKind.LACKS, namespace, name)
        self.state.guard(GuardKind.LACKS, KeptSource(frame.builtins, "builtins"), name)
        return UNBOUND

    def store_global(self, frame: FrameState, name: str, value: Any) -> None:
        if type(frame.globals) is not dict or value is UNBOUND:
            raise GraphBreak(
                "unsupported_operation", what=f"an assignment to the global variable {name}", kind="module"
            )
        self.state.effects.set_global(frame.globals, name, value)

    def load_from(self, mapping: Any, name: str) -> Any:
        raise GraphBreak("unsupported_operation", what="a name", kind="class body")

    def store_name(self, frame: FrameState, name: str, value: Any) -> None:
        raise GraphBreak("unsupported_operation", what="an assignment", kind="class body")

    def local_names(self, frame: FrameState) -> Any:
        raise GraphBreak("unsupported_operation", what="a name", kind="class body")

    def unbound(self, kind: str, name: str) -> NoReturn:
        if kind == "name":
            raising(NameError)
        raise GraphBreak("op_raises_on_fake", what=name, error="UnboundLocalError")

    # ----------------------------------------------------------------------------------------------------------- patterns

    def is_pattern(self, kind: str, value: Any) -> bool:
        value = self.state.see(value)
        match value:
            case SequenceValue():
                return kind == "sequence"
            case DictValue():
                return kind == "mapping"
            case ConstantValue() | TensorValue():
                return isinstance(value, ConstantValue) and isinstance(value.value, range) and kind == "sequence"
            case _:
                unsupported("match", value)

    def match_keys(self, mapping: Any, keys: Any) -> Any:
        mapping = self.state.see(mapping)
        wanted = [self.hash_key(key) for key in self.elements(keys)]
        if not isinstance(mapping, DictValue) or len({*wanted}) < len(wanted):
            unsupported("match", mapping)
        if not all(key in mapping.items for key in wanted):
            return ConstantValue(None)
        return SequenceValue(tuple, [mapping.items[key][1] for key in wanted])

    def match_class(self, subject: Any, kind: Any, positional: int, names: Any) -> Any:
        unsupported("match of a class", self.state.see(subject))

    def without_keys(self, mapping: Any, keys: Any) -> Any:
        dropped = {self.hash_key(key) for key in self.elements(keys)}
        return DictValue({key: item for key, item in self.state.see(mapping).items.items() if key not in dropped})


def _is_number(value: Value) -> bool:
    return isinstance(value, NumberValue) or (
        isinstance(value, ConstantValue) and type(value.value) in (int, float, bool)
    )
