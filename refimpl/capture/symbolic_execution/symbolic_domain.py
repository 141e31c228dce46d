"""The symbolic domain: the interpreter's loop asks it about values, and it asks the value of each kind.

Counterpart: torch/_dynamo/symbolic_convert.py
Differs: what is not known breaks the graph before the instruction and is never approximated. CPython's rules then run the
instruction, so a missing rule costs a graph but never correctness.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, ModuleType
from typing import Any, NoReturn

import torch

from refimpl._torch import assert_of_tensor, check_condition
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import GlobalSource, ItemSource, KeptSource, SlotSource, StackSource
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.interpreter.machine import DEPTH_LIMIT
from refimpl.capture.interpreter.signals import Enter, Signal
from refimpl.capture.rules.lazy_iterators import CLASS_METHODS
from refimpl.capture.state.capture_state import CaptureState
from refimpl.capture.symbolic_execution import inlining
from refimpl.capture.symbolic_execution.object_calls import call_object
from refimpl.capture.torch_functions.constructors import as_subclass
from refimpl.capture.torch_functions.devices import enter_device, leave_device
from refimpl.capture.torch_functions.dispatch import overridden
from refimpl.capture.values import (
    ArrayValue,
    CellValue,
    CombinedIteratorValue,
    ConstantValue,
    DictValue,
    ErrorValue,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    LazyValue,
    LocalFunctionValue,
    MethodValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    SetValue,
    SliceValue,
    TensorValue,
    TracebackValue,
    Value,
    polyfills,
)
from refimpl.capture.values.array import array_of_tensor
from refimpl.capture.values.classes import ends_with_code
from refimpl.capture.values.constant import is_float_of_inputs, known
from refimpl.capture.values.equality import compare_containers, same_or_equal
from refimpl.capture.values.error import make_error
from refimpl.capture.values.hashing import CONSTANT_TYPES, Fields, Member, has_own_key
from refimpl.capture.values.object_operators import binary_of_objects, compare_objects
from refimpl.capture.values.program_object import ProgramObject, is_mapping, items_of_mapping
from refimpl.capture.values.set import as_set, binary_of_sets, compare_sets, make_set, set_of
from refimpl.capture.values.subclass_tensor import overriding_method
from refimpl.capture.values.super import super_value
from refimpl.capture.values.value import UserRaise, before_the_end, end_of, raising, unsupported

_OBJECTS_OF_CODE = (slice, frozenset, CodeType, torch.finfo, torch.iinfo)


# Bits of `__flags__` of classes, which class, sequence and mapping patterns read.
_IS_SEQUENCE, _IS_MAPPING, _MATCHES_ITSELF = 1 << 5, 1 << 6, 1 << 22
_KNOWN = (ObjectValue, LocalFunctionValue)


class SymbolicDomain(Domain):
    """Passes each question to the values concerned, after it has realized them."""

    def __init__(self, state: CaptureState) -> None:
        self.state = state
        self.taken: list[tuple[IteratorValue | CombinedIteratorValue, int, bool]] = []
        """(iterator, position, whether it was exhausted) before the current instruction."""

    def untake(self) -> None:
        """Restores the iterators, because an instruction that breaks the graph runs again."""
        for iterator, place, is_exhausted in reversed(self.taken):
            iterator.untake(place, is_exhausted)
        self.taken.clear()

    # --------------------------------------------------------------------------------------------- making values

    def is_constant(self, value: Any) -> bool:
        """Whether an equal object may stand for this one."""
        return type(value) in CONSTANT_TYPES or type(value) in _OBJECTS_OF_CODE

    def constant(self, value: Any) -> Any:
        if type(value) is tuple:
            return SequenceValue(tuple, [self.constant(item) for item in value])
        return ConstantValue(value)

    def object(self, object_: Any) -> ObjectValue:
        """The value of an object that is known by identity and needs no guard."""
        return ObjectValue(object_)

    def iterator(self, over: Value, items: list[Value]) -> IteratorValue:
        """A new iterator over a value that gives these items."""
        return IteratorValue(over, items)

    def named(self, kwargs: dict[str, Any]) -> DictValue:
        """Keyword arguments as a dict."""
        return DictValue({name: (ConstantValue(name), value) for name, value in kwargs.items()})

    def array_of_tensor(self, tensor: TensorValue) -> ArrayValue:
        """`tensor.numpy()`."""
        return array_of_tensor(tensor)

    def key_value(self, key: Any) -> Value:
        """The value of a key of a dict's or set's `items`."""
        match key:
            case Member() | Fields():
                return key.value
            case tuple():
                return SequenceValue(tuple, [self.key_value(item) for item in key])
            case _:
                return ObjectValue(key) if has_own_key(key) else ConstantValue(key)

    def value_of(self, result: Any, what: str) -> Value:
        """The value of a new object made of constants. Breaks the graph for any other object."""
        if isinstance(result, (tuple, list)) and type(result) in (tuple, list):
            return SequenceValue(type(result), [self.value_of(item, what) for item in result])
        if self.is_constant(result):
            return ConstantValue(result)
        raise GraphBreak("op_returns", what=what, result=type(result).__name__)

    # ---------------------------------------------------------------------------------------------- what values are

    def constant_of(self, value: Any, what: str) -> Any:
        """The object of a constant, or of a tuple or list of constants. Breaks the graph for any other value."""
        return self.state.realize(value).constant(self, what)

    def is_none(self, value: Any) -> bool:
        value = self.state.realize(value)
        return isinstance(value, ConstantValue) and value.value is None

    def truth(self, value: Any) -> bool | Enter:
        return self.state.realize(value).truth(self)

    def asserts(self, value: Any, message: str) -> bool:
        value = self.state.realize(value)
        if not self.state.is_whole:
            return False  # eager's AssertionError is not the error of an assertion in a graph
        if isinstance(value, NumberValue) and isinstance(value.number, torch.SymBool) and self.state.is_read(value):
            self.state.operator(check_condition, [value], {})
            return True
        if isinstance(value, TensorValue) and value.fake.numel() == 1:
            self.state.operator(assert_of_tensor, [value, ConstantValue(message)], {})
            return True
        return False

    def hash_key(self, key: Any) -> Any:
        """The key under which a dict or set stores the value."""
        return self.state.realize(key).hash_key(self)

    def known_key(self, key: Value, *, is_constant: bool = False) -> Value:
        """A number or slice that depends on sizes, as a constant. is_constant: a slice must not contain a tensor."""
        if isinstance(key, SliceValue):
            if is_constant or not any(isinstance(self.state.realize(part), TensorValue) for part in key.parts):
                return ConstantValue(slice(*(self.constant_of(part, "a slice") for part in key.parts)))
        if is_constant and isinstance(key, TensorValue) and (number := key.constant_index()) is not None:
            return ConstantValue(number)
        return known(self, key)

    def convert(self, kind: str, value: Any) -> Any:
        return self.state.realize(value).text(self, kind)

    def format(self, value: Any, spec: Any) -> Any:
        return self.state.realize(value).format(self, spec)

    # ---------------------------------------------------------------------------------------- `__torch_function__`

    def overridden(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, is_method: bool = False
    ) -> Any:
        """What a mode or an argument answers to a call of a function of torch; None where nobody is asked."""
        return overridden(self, target, args, kwargs or {}, is_method=is_method)

    def overridden_attribute(self, value: TensorValue, name: str) -> Any:
        """What a mode or the tensor's class answers when an attribute of torch.Tensor is read; None where nobody is asked."""
        if inspect.isroutine(getattr(torch.Tensor, name, inspect.isroutine)):  # binding a method asks nobody
            return None
        return overridden(self, getattr, [value, ConstantValue(name)], {})

    def as_subclass(self, value: TensorValue, class_: Any) -> Value:
        """`tensor.as_subclass(class_)`."""
        return as_subclass(self, value, self.constant_of(class_, "as_subclass"))

    def _of_tensors(self, operation: Any, *operands: Value) -> Any:
        """What a method in Python, a mode or an operand's `__torch_function__` answers to an instruction; None where nobody is
        asked.
        """
        if not any(isinstance(operand, TensorValue) for operand in operands):
            return None
        method = overriding_method(operation, operands)
        if method is not None:
            name, value, *others = method
            return self.call(None, value.load_attr(self, name), list(others), {})  # pyright: ignore[reportArgumentType]
        return overridden(self, operation, operands, {})

    # --------------------------------------------------------------------------------------------------- operators

    def unary(self, sign: str, value: Any) -> Any:
        value = self.state.realize(value)
        if sign == "not":
            truth = self.truth(value)
            return ConstantValue(not truth) if type(truth) is bool else self.enter_polyfill(polyfills.negated, [value])
        answer = self._of_tensors(UNARY[sign], value)
        return value.unary(self, sign) if answer is None else answer

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        left, right = self.state.realize(left), self.state.realize(right)
        answer = self._of_tensors(BINARY[sign], left, right)
        if answer is not None:
            return answer
        return (left if left.rank >= right.rank else right).binary(self, sign, left, right)

    def compare(self, sign: str, left: Any, right: Any) -> Any:
        left, right = self.state.realize(left), self.state.realize(right)
        answer = self._of_tensors(COMPARE[sign], left, right)
        if answer is not None:
            return answer
        return (left if left.rank >= right.rank else right).compare(self, sign, left, right)

    def identical(self, left: Any, right: Any, inverted: bool) -> Any:
        left, right = self.state.realize(left), self.state.realize(right)
        same = left is right
        if not same and (is_float_of_inputs(left) or is_float_of_inputs(right)):  # two variables may have one float
            left, right = known(self, left), known(self, right)
        if not same and isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            same = left.value is right.value
            if not same and type(left.value) is type(right.value) and left.value == right.value:
                unsupported("`is` of equal constants", left)
        elif not same and isinstance(left, _KNOWN) and isinstance(right, _KNOWN):
            same = left.object is right.object
            for value in (left, right):
                if isinstance(value, LocalFunctionValue) and value.source is not None:
                    self.state.guard(GuardKind.ID, value.source, value.object)
        elif not same and isinstance(left, TensorValue) and isinstance(right, TensorValue) and left.fake is right.fake:
            unsupported("`is` of tensors of which one may be the other", left)
        if not same and left.source is not None and right.source is not None:
            if not isinstance(left, ConstantValue) and not isinstance(right, ConstantValue):
                self.state.guard(GuardKind.DISTINCT, left.source, right.source)
        return ConstantValue(same is not inverted)

    def same_or_equal(self, left: Any, right: Any) -> bool | None:
        """`left is right or left == right`, as containers compare items; None if that needs code of the user's."""
        return same_or_equal(self, left, right)

    def compare_containers(self, sign: str, left: Value, right: Value) -> Any:
        """A comparison in which one side is a sequence, dict or view."""
        return compare_containers(self, sign, left, right)

    def binary_of_sets(self, sign: str, left: Value, right: Value) -> Value:
        """`|`, `&`, `-` or `^`, where one side is a set or a view of keys."""
        return binary_of_sets(self, sign, left, right)

    def compare_sets(self, sign: str, left: Value, right: Value) -> Value:
        """A comparison in which one side is a set or a view of keys."""
        return compare_sets(self, sign, left, right)

    def binary_of_objects(self, sign: str, left: Value, right: Value) -> Any:
        """An operator of which one operand is an object of a class of the program."""
        return binary_of_objects(self, sign, left, right)

    def compare_objects(self, sign: str, left: Value, right: Value) -> Any:
        """A comparison of which one side is an object of a class of the program."""
        return compare_objects(self, sign, known(self, left), known(self, right))

    # -------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, value: Any, name: str) -> Any:
        return self.state.realize(value).load_attr(self, name)

    def has_attribute(self, value: Any, name: str) -> bool | None:
        """`hasattr`, with a guard; None if that needs code of the user's."""
        value = self.state.realize(value)
        found = value.has_attribute(self, name)
        if found:
            value.guard_attribute(self, name)
        return found

    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        return self.state.realize(value).store_attr(self, name, attribute)

    def delete_attr(self, value: Any, name: str) -> Enter | None:
        return self.state.realize(value).delete_attr(self, name)

    def load_super_attr(self, frame: FrameState, super_: Any, class_: Any, self_: Any, name: str, given: bool) -> Any:
        super_ = self.state.realize(super_)
        if not isinstance(super_, ObjectValue) or super_.object is not super:
            unsupported("super()", super_)
        return super_value(self, class_, self_).load_attr(self, name)

    def special(self, value: Any, name: str) -> MethodValue | None:
        """A special method written in Python, looked up on the class and bound; None if the class has none, or one in C."""
        return value.special(self, name)

    def call_special(self, value: Any, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class."""
        return value.call_special(self, name, args)

    def enter_context(self, frame: FrameState, manager: Any) -> tuple[Any, Any]:
        return self.state.realize(manager).enter_context(self)

    def enter_device(self, device: ConstantValue) -> tuple[Any, Any]:
        """`with torch.device(...)`."""
        return enter_device(self, device)

    def leave_device(self) -> Value:
        """The end of `with torch.device(...)`."""
        return leave_device(self)

    # -------------------------------------------------------------------------------------------------- what is in it

    def length(self, value: Any) -> Any:
        """`len(value)`."""
        value = self.state.realize(value)
        answer = self._of_tensors(len, value)
        return value.length(self) if answer is None else answer

    def contains(self, item: Any, container: Any, inverted: bool) -> Any:
        return self.state.realize(container).contains(self, self.state.realize(item), inverted)

    def get_item(self, container: Any, key: Any) -> Any:
        container, key = self.state.realize(container), self.state.realize(key)
        answer = self._of_tensors(operator.getitem, container, key)
        return container.get_item(self, key) if answer is None else answer

    def set_item(self, container: Any, key: Any, item: Any) -> Enter | None:
        container, key = self.state.realize(container), self.state.realize(key)
        answer = self._of_tensors(operator.setitem, container, key, self.state.realize(item))
        return container.set_item(self, key, item) if answer is None else answer

    def delete_item(self, container: Any, key: Any) -> Enter | None:
        return self.state.realize(container).delete_item(self, known(self, self.state.realize(key)))

    def elements(self, value: Any) -> list[Value]:
        """The items that iterating gives. Only for values whose iteration runs no code of the user's."""
        return self.state.realize(value).elements(self)

    def runs_code(self, value: Any) -> bool:
        """Whether iterating over the value may run code of the user's, or resume a generator."""
        return self.state.realize(value).runs_code(self)

    def is_mapping(self, value: Any, taker: type = dict) -> bool:
        """Whether `taker(value)`, for a class of dicts, asks the object for its keys and items, which runs code of the user's."""
        return is_mapping(self, self.state.realize(value), taker)

    def pairs_of(self, value: Any, taker: type = dict) -> list[tuple[Value, Value]]:
        """The pairs that `taker(value)`, for a class of dicts, would hold."""
        value = self.state.realize(value)
        inside = items_of_mapping(self, value, taker)
        return (value if inside is None else inside).pairs(self)

    def get_iter(self, value: Any) -> Any:
        return self.state.realize(value).iterate(self)

    def next(self, iterator: Any) -> Any:
        return self.state.realize(iterator).next(self)

    def yield_from_iter(self, frame: FrameState, value: Any) -> Any:
        return self.get_iter(value)

    def send(self, receiver: Any, value: Any) -> Any:
        receiver = self.state.realize(receiver)
        if isinstance(receiver, GeneratorValue):
            return receiver.resumed(self, value)
        if not self.is_none(value):
            raise GraphBreak("unsupported_operation", what="send()", kind=receiver.kind)
        return receiver.next(self)

    # ---------------------------------------------------------------------------------------- displays and unpacking

    def build(self, kind: str, items: list[Any]) -> Any:
        match kind:
            case "tuple":
                return SequenceValue(tuple, items)
            case "list":
                return SequenceValue(list, items)
            case "dict":
                made = DictValue({})
                for index in range(0, len(items), 2):
                    made.put(self, items[index], items[index + 1])
                return made
            case "set":
                return make_set(self, set, items)
            case "slice":
                parts = tuple(self.state.realize(item) for item in items)
                if all(isinstance(part, ConstantValue) for part in parts):
                    return ConstantValue(slice(*(part.value for part in parts)))
                return SliceValue(parts)
            case "string":
                return ConstantValue("".join(self.constant_of(item, "a part of a string") for item in items))
            case _:
                raise GraphBreak("unsupported_operation", what="a display", kind=kind)

    def put(self, container: DictValue, key: Any, value: Value) -> None:
        """`container[key] = value`."""
        container.put(self, key, value)

    def as_set(self, value: Value) -> SetValue:
        """A constant frozenset as a SetValue."""
        return as_set(self, value)

    def set_of(self, class_: type, iterable: Value) -> Any:
        """`set(iterable)` or `frozenset(iterable)`."""
        return set_of(self, class_, iterable)

    def grow(self, how: str, container: Any, *items: Any) -> Enter | None:
        container = self.state.realize(container)
        match how, container:
            case "append", SequenceValue():
                container.append(self, items[0])
            case "add", SetValue():
                container.add(self, items[0])
            case "update_set", SetValue() if self.runs_code(items[0]):
                return self.enter_polyfill(polyfills.added, [container, items[0]])
            case "update_set", SetValue():
                container.update(self, items[0])
            case "extend", SequenceValue() if self.runs_code(items[0]):
                return self.enter_polyfill(polyfills.extended, [container, items[0]])
            case "extend", SequenceValue():
                container.extend(self, items[0])
            case "put", DictValue():
                container.put(self, *items)
            case (("update_dict" | "merge"), DictValue()):
                other = self.state.realize(items[0])
                if isinstance(other, ProgramObject):
                    other = items_of_mapping(self, other, dict) or other
                if self.is_mapping(other):
                    return self.enter_polyfill(polyfills.merged, [container, other, ConstantValue(how == "merge")])
                if not isinstance(other, DictValue) or (how == "merge" and container.items.keys() & other.items.keys()):
                    unsupported(how, other)
                for key, value in other.items.values():
                    container.put(self, key, value)
            case _:
                unsupported(how, container)

    def const_keys(self, keys: Any) -> list[Any]:
        return self.elements(keys)

    def list_to_tuple(self, value: Any) -> Any:
        return SequenceValue(tuple, self.elements(value))

    def unpack(self, value: Any, before: int, after: int | None) -> list[Any] | Enter:
        if self.runs_code(value):
            if after is None:
                return self.enter_polyfill(polyfills.unpacked, [value, ConstantValue(before)])
            return self.enter_polyfill(polyfills.listed, [value])
        items = self.elements(value)
        if len(items) < before + (after or 0) or (after is None and len(items) != before):
            raising(ValueError)
        if after is None:
            return items
        middle = SequenceValue(list, items[before : len(items) - after])
        return [*items[:before], middle, *items[len(items) - after :]]

    # ----------------------------------------------------------------------------------------------------------- calls

    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.state.realize(function).call(self, frame, args, kwargs)

    def call_object(self, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls an object of the program: a function, a class, a module or another object."""
        return call_object(self, frame, function, args, kwargs)

    def has_class_method(self, class_: Any, name: str) -> bool:
        """Whether there is a rule for a class method written in C."""
        return (id(class_), name) in CLASS_METHODS

    def call_class_method(
        self, class_: Any, name: str, frame: FrameState, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Calls it by that rule."""
        return CLASS_METHODS[id(class_), name](self, frame, args, kwargs)

    def folded(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """Evaluates a function on constants. Breaks the graph if it raises."""
        return inlining.folded(self, function, args, kwargs)

    def enter_function(self, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Inlines a Python function: `Enter` with its frame."""
        return inlining.enter_function(self, function, args, kwargs)

    def enter_polyfill(self, polyfill: Any, args: list[Any]) -> Enter:
        """Inlines a polyfill: a frame that the user's program does not have."""
        entered = self.enter_function(ObjectValue(polyfill), args, {})
        assert type(entered) is Enter
        return entered

    def keyword_names(self, names: Any) -> tuple[str, ...]:
        return tuple(self.constant_of(name, "a keyword") for name in self.elements(names))

    def call_ex(self, frame: FrameState, function: Any, args: Any, kwargs: Any) -> Any:
        if self.runs_code(args):
            given = [function, args, self.named({}) if kwargs is None else kwargs]
            return self.enter_polyfill(polyfills.called_with_each, given)
        named: dict[str, Any] = {}
        if kwargs is not None:
            mapping = self.state.realize(kwargs)
            if not isinstance(mapping, DictValue):
                unsupported("`**` of a call", mapping)
            named = {self.constant_of(key, "a keyword"): value for key, value in mapping.items.values()}
            if not all(isinstance(name, str) for name in named):
                raising(TypeError, "keywords must be strings")
        return self.call(frame, function, self.elements(args), named)

    # ----------------------------------------------------------------------------------------------------- definitions

    def make_function(self, frame: FrameState, code: Any, qualname: Any) -> Any:
        name = None if qualname is None else self.constant_of(qualname, "a name")
        return FunctionValue(self.constant_of(code, "code"), frame.globals, name)

    def set_function_attribute(self, function: Any, which: str, value: Any) -> Any:
        function = self.state.realize(function)
        if not isinstance(function, FunctionValue):
            unsupported(f"an assignment of {which}", function)
        function.set_part(self, which, value)
        return function

    def load_build_class(self, frame: FrameState) -> Any:
        found = frame.builtins.get("__build_class__")
        if found is None:
            raising(NameError)
        return self.state.wrap(found, GlobalSource(KeptSource(frame.builtins, "builtins"), "__build_class__"))

    def import_name(self, frame: FrameState, name: str, names: Any, level: Any) -> Any:
        """A module that is loaded already: importing it again only looks it up in `sys.modules`."""
        from_list = self.constant_of(names, "import")
        loaded = sys.modules.get(name)
        is_plain = frame.builtins.get("__import__") is builtins.__import__ and self.constant_of(level, "import") == 0
        if not is_plain or not isinstance(loaded, ModuleType):
            raise GraphBreak("unsupported_operation", what=f"import {name}", kind="module")
        found = name if from_list else name.partition(".")[0]
        kept = KeptSource(sys.modules, "sys.modules")
        return self.state.wrap(sys.modules[found], ItemSource(kept, found))

    def import_from(self, module: Any, name: str) -> Any:
        return self.load_attr(module, name)

    def intrinsic(self, frame: FrameState, name: str, *operands: Any) -> Any:
        raise GraphBreak("unsupported_operation", what=name, kind="module")

    # ------------------------------------------------------------------------------------------------ variables and names

    def make_cell(self, value: Any) -> Any:
        return CellValue(value)

    def cell_value(self, cell: Any) -> Any:
        cell = self.state.realize(cell)
        if not isinstance(cell, CellValue):
            unsupported("a variable of a closure", cell)
        if cell.source is None or cell.is_written:
            return cell.content
        content = self._real_content(cell)
        if content is UNBOUND:
            raise GraphBreak("unsupported_operation", what="a variable without value", kind="cell")
        return self.state.content_of(cell, content)

    def _real_content(self, cell: CellValue) -> Any:
        real: CellType = self.state.object_of(cell)
        try:
            return real.cell_contents
        except ValueError:
            return UNBOUND

    def set_cell(self, cell: Any, value: Any) -> None:
        cell = self.state.realize(cell)
        if not isinstance(cell, CellValue):
            unsupported("an assignment to a variable of a closure", cell)
        if cell.source is not None and not cell.is_written:
            before_the_end(self._real_content(cell))
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
            return LazyValue(frame.globals[name], GlobalSource(namespace, name))
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
        if self.state.effects.global_(frame.globals, name) is None:
            before_the_end(frame.globals.get(name))
        self.state.effects.set_global(frame.globals, name, value)

    def load_from(self, mapping: Any, name: str) -> Any:
        raise GraphBreak("unsupported_operation", what="a name", kind="class body")

    def store_name(self, frame: FrameState, name: str, value: Any) -> None:
        raise GraphBreak("unsupported_operation", what="an assignment", kind="class body")

    def local_names(self, frame: FrameState) -> Any:
        raise GraphBreak("unsupported_operation", what="a name", kind="class body")

    def names(self, frame: FrameState, slot: int, value: Any) -> None:
        """Names the node of a tensor after the first variable that holds it."""
        if isinstance(value, (TensorValue, ArrayValue)):
            self.state.notes.name(value, frame, slot)

    def drops(self, frame: FrameState, slot: int) -> None:
        """Breaks the graph before a variable loses an object that it may be the last to hold, if the end of the object runs
        code. The caller holds what was given for a parameter.
        """
        value = frame.slots[slot]
        if not isinstance(value, (LazyValue, ObjectValue)):
            return
        source, class_ = value.source, type(value.object)
        is_held = isinstance(source, SlotSource) and source.slot < frame.code.code.co_argcount
        if is_held or not isinstance(source, (SlotSource, StackSource)):
            return
        if ends_with_code(value.object):
            raise end_of(class_)

    def unbound(self, kind: str, name: str) -> NoReturn:
        if kind == "name":
            raising(NameError)
        raise GraphBreak("op_raises_on_fake", what=name, error="UnboundLocalError")

    # ----------------------------------------------------------------------------------------------------------- patterns

    def is_pattern(self, kind: str, value: Any) -> bool:
        value = self.state.realize(value)
        match value:
            case SequenceValue():
                return kind == "sequence"
            case DictValue():
                return kind == "mapping"
            case ConstantValue() | TensorValue():
                return isinstance(value, ConstantValue) and isinstance(value.value, range) and kind == "sequence"
            case ObjectValue() | InstanceValue() if not value.class_of().__flags__ & (_IS_SEQUENCE | _IS_MAPPING):
                return False
            case _:
                unsupported("match", value)

    def match_keys(self, mapping: Any, keys: Any) -> Any:
        mapping = self.state.realize(mapping)
        wanted = [self.hash_key(key) for key in self.elements(keys)]
        if not isinstance(mapping, DictValue) or len({*wanted}) < len(wanted):
            unsupported("match", mapping)
        if not all(key in mapping.items for key in wanted):
            return ConstantValue(None)
        return SequenceValue(tuple, [mapping.items[key][1] for key in wanted])

    def match_class(self, subject: Any, kind: Any, positional: int, names: Any) -> Any:
        class_ = self.state.realize(kind)
        wanted = [self.constant_of(name, "a name") for name in self.elements(names)]
        takes_itself = False
        if not isinstance(class_, ObjectValue) or not class_.is_class:
            unsupported("match of a class", class_)
        if positional:
            if self.has_attribute(class_, "__match_args__"):
                known = self.constant_of(self.load_attr(class_, "__match_args__"), "__match_args__")
                if type(known) is not tuple or not all(type(name) is str for name in known):
                    raising(TypeError)
                wanted = [*known[:positional], *wanted]
            else:
                takes_itself = bool(class_.object.__flags__ & _MATCHES_ITSELF)
            if len({*wanted}) < positional - takes_itself + len(self.elements(names)) or (
                takes_itself and positional > 1
            ):
                unsupported("match of a class", class_)  # eager raises
        given = [subject, kind, ConstantValue(takes_itself), self.constant(tuple(wanted))]
        return self.enter_polyfill(polyfills.matched, given)

    def without_keys(self, mapping: Any, keys: Any) -> Any:
        dropped = {self.hash_key(key) for key in self.elements(keys)}
        return DictValue({key: item for key, item in self.state.realize(mapping).items.items() if key not in dropped})

    # ----------------------------------------------------------------------------------------------------------- raising

    def user_exception(self, raised: BaseException) -> Any:
        if type(raised) is not UserRaise:
            raise raised
        if raised.error is not None:
            return raised.error
        assert raised.class_ is not None
        made = [ConstantValue(arg) for arg in raised.constants] if raised.constants else None
        return ErrorValue(raised.class_, made if raised.values is None else raised.values)

    def under(self, handled: Any, advance: Callable[[FrameState], Signal], frame: FrameState) -> Signal:
        return advance(frame)

    def add_traceback(self, error: Any, frame: FrameState) -> None:
        """Does nothing: exceptions have no traceback here."""

    def throw(self, error: Any, *, is_handling: bool) -> NoReturn:
        raise UserRaise(error=error)

    def leave(self, error: Any) -> NoReturn:
        raise GraphBreak("exception_leaves", what=error.written()).restarting_at(error.raised_at)

    def raise_(self, exception: Any, cause: Any, has_cause: bool) -> None:
        made = self.as_error(exception)
        if not isinstance(made, ErrorValue):
            raise GraphBreak("unsupported_operation", what="raise", kind="an exception made elsewhere")
        if has_cause:
            made.cause = self._cause(cause)
        raise UserRaise(error=made)

    def as_error(self, raised: Any) -> Any:
        """The exception that `raise` raises for a value: a class is called."""
        seen = self.state.realize(raised)
        is_class = isinstance(seen, ObjectValue) and seen.is_class and issubclass(seen.object, BaseException)
        return make_error(self, seen.object, [], {}) if is_class else seen

    def _cause(self, cause: Any) -> Value:
        """The `__cause__` that `raise error from cause` sets."""
        seen = self.as_error(cause)
        if not isinstance(seen, ErrorValue) and not self.is_none(seen):
            raise GraphBreak("unsupported_operation", what="raise", kind="a cause made elsewhere")
        return seen

    def nothing_to_reraise(self) -> Any:
        unsupported("raise", ConstantValue(None))

    def too_deep(self) -> NoReturn:
        raise GraphBreak("too_deep", what=DEPTH_LIMIT)

    def leave_generator(self, error: Any) -> Any:
        if not issubclass(error.class_, StopIteration):
            return error
        replacement = ErrorValue(RuntimeError, [ConstantValue("generator raised StopIteration")])
        replacement.raised_at, replacement.cause = error.raised_at, error
        return replacement

    # ---------------------------------------------------------------------------------------------------------- handling

    def matches(self, error: Any, kinds: Any) -> bool:
        return any(kind in error.class_.__mro__ for kind in self._kinds(kinds))

    def _kinds(self, kinds: Any) -> list[type]:
        kinds = self.state.realize(kinds)
        if isinstance(kinds, SequenceValue) and kinds.class_ is tuple:
            return [class_ for item in kinds.items for class_ in self._kinds(item)]
        if isinstance(kinds, ObjectValue) and kinds.is_class and issubclass(kinds.object, BaseException):
            return [kinds.object]
        unsupported("except", kinds)

    def split_group(self, error: Any, kinds: Any) -> tuple[Any, Any]:
        unsupported("except*", error)

    def regroup(self, original: Any, errors: Any) -> Any:
        unsupported("except*", original)

    def stop_value(self, error: Any) -> tuple[bool, Any]:
        if not issubclass(error.class_, StopIteration):
            return False, None
        if error.args is None:
            unsupported("attribute value", error)
        return True, error.args[0] if error.args else ConstantValue(None)

    def exit_context(self, frame: FrameState, exit_: Any, error: Any) -> Any:
        if error.raised_at is None:
            unsupported("with", error)
        return self.call(frame, exit_, [ObjectValue(error.class_), error, TracebackValue(error)], {})
