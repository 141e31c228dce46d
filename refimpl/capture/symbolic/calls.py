"""Calls of symbolic values: what is entered, what is a node, what is answered at once.

Counterpart: torch/_dynamo/variables/functions.py, builtin.py, torch.py
"""

from __future__ import annotations

import builtins
import sys
import weakref
from collections.abc import Sequence
from enum import EnumMeta
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch

from refimpl._torch import LazyGraphModule
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.config import config
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import (
    AttributeSource,
    GlobalSource,
    ItemSource,
    KeptSource,
    ReferentSource,
    class_source,
)
from refimpl.capture.interpreter.arguments import bind, surplus_slots
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.public import marks
from refimpl.capture.recognition import CAPTURES, ROUNDING, Treatment, treatment
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.assumed_results import assumed_result
from refimpl.capture.symbolic.autograd_functions import AUTOGRAD_RULES
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.builtin_calls import BUILTIN_RULES
from refimpl.capture.symbolic.check_calls import CHECK_RULES
from refimpl.capture.symbolic.checkpoints import CHECKPOINT_RULES
from refimpl.capture.symbolic.class_definitions import CLASS_RULES
from refimpl.capture.symbolic.classes import is_a
from refimpl.capture.symbolic.constant_calls import CACHED, CONSTANT_RULES
from refimpl.capture.symbolic.container_methods import method_of_container
from refimpl.capture.symbolic.control_flow import CONTROL_FLOW_RULES
from refimpl.capture.symbolic.dict_objects import has_dict_inside
from refimpl.capture.symbolic.errors import is_plain_error
from refimpl.capture.symbolic.iterable_calls import ITERABLE_RULES
from refimpl.capture.symbolic.lazy_iterators import CLASS_METHODS, ITERATOR_RULES
from refimpl.capture.symbolic.made_modules import begin_module, is_module_init
from refimpl.capture.symbolic.numpy_calls import NUMPY_RULES
from refimpl.capture.symbolic.operator_calls import OPERATOR_RULES
from refimpl.capture.symbolic.raising import UserRaise, raising, unsupported
from refimpl.capture.symbolic.signatures import SIGNATURE_RULES
from refimpl.capture.symbolic.tensor_methods import call_of_tensor
from refimpl.capture.symbolic.values import (
    ArrayValue,
    CombinedIteratorValue,
    ConstantValue,
    DictValue,
    ErrorValue,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    MethodValue,
    NativeIteratorValue,
    NativeMethodValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    RegionValue,
    SequenceValue,
    SetValue,
    TensorValue,
    UnreadValue,
    Value,
)
from refimpl.capture.symbolic.watched_gradients import keep_detached_apart, keep_inputs_apart, keep_watched_apart
from refimpl.capture.symbolic.wrapping import hash_key_of

_RULES = {
    **BUILTIN_RULES,
    **CONSTANT_RULES,
    **ITERABLE_RULES,
    **ITERATOR_RULES,
    **NUMPY_RULES,
    **OPERATOR_RULES,
    **SIGNATURE_RULES,
    **AUTOGRAD_RULES,
    **CHECK_RULES,
    **CHECKPOINT_RULES,
    **CLASS_RULES,
    **CONTROL_FLOW_RULES,
}
_ANSWERED = (Treatment.NODE, Treatment.STATE, Treatment.FOLD, Treatment.COMPILING)
_PLAIN_METACLASSES = (type, FunctionType, type(torch.Tensor), type(torch.nn.Parameter))
_MODULE_CALL = torch.nn.Module.__call__


class SymbolicCalls(SymbolicBase):
    """`function(...)`."""

    def call(self, frame: FrameState, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = self.state.see(function)
        match function:
            case MethodValue():
                return self.call(frame, function.function, [function.receiver, *args], kwargs)
            case NativeMethodValue():
                return self._call_native_method(frame, function, args, kwargs)
            case FunctionValue():
                return self.enter_function(function, args, kwargs)
            case PartialValue():
                return self.call(frame, function.function, [*function.args, *args], {**function.keywords, **kwargs})
            case ObjectValue():
                return self._call_object(frame, function, args, kwargs)
            case InstanceValue() if (method := self.special(function, "__call__")) is not None:
                return self.enter_function(method.function, [function, *args], kwargs)
            case _:
                unsupported("a call", function)

    def _call_object(self, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target = function.object
        eaten = self.eaten(function, args, kwargs)
        if eaten is not None:
            return eaten
        if config.ignore_logging_functions and any(target is ignored for ignored in config.ignore_logging_functions):
            return ConstantValue(None)
        if function.source is not None and self._is_answered(target):
            self.state.guard(GuardKind.ID, function.source, target)  # operators and numpy's functions share one class
        rule = _RULES.get(id(target))
        if rule is not None:
            return rule(self, frame, args, kwargs)
        if is_module_init(target):
            return begin_module(self, frame, args, kwargs)
        if marks.is_forbidden(target):
            raise AssertionError(
                f"Attempt to trace forbidden callable {target}\n  expected: a function that may be called while it is captured\n"
                "  what to do: call it outside of what is captured"
            )
        if id(target) in marks.ALLOWED:
            return self.state.operator(target, args, kwargs)
        if is_a(target, torch.nn.Module):
            return self._call_module(frame, function, args, kwargs)
        if is_a(target, CACHED):
            return self.call_cached(function, args, kwargs)
        if type(function.object) is weakref.ref and function.source is not None and not args and not kwargs:
            return self.state.wrap(function.object(), ReferentSource(function.source))
        if is_a(target, EnumMeta):
            return self.member_of(function, args, kwargs)
        if is_a(target, type):
            return self.instantiate(frame, function, args, kwargs)
        if is_a(target, FunctionType) and CAPTURES in target.__dict__:
            return self._call_captured(frame, function, args, kwargs)
        if is_a(target, FunctionType) and target.__dict__.get(marks.CONSTANT_RESULT):
            return assumed_result(self, target, args, kwargs)
        if self.is_array_call(target):
            return self.call_numpy(target, args, kwargs)
        keep_watched_apart(self.state, target, args)
        what = treatment(target)
        match what:
            case Treatment.NODE:
                keep_detached_apart(self.state, target, args)
                return self._node(target, args, kwargs)
            case Treatment.STATE:
                if "autocast" in target.__name__ and not self.state.open_regions:
                    self.state.guard_autocast()
                return ConstantValue(target(*(self.constant_of(self.state.see(arg), target.__name__) for arg in args)))
            case Treatment.FOLD:
                return self._fold(target, args, kwargs)
            case Treatment.COMPILING:
                return ConstantValue(True)
            case Treatment.ENTER:
                keep_inputs_apart(self.state, target, args, kwargs)
                return self.enter_function(function, args, kwargs)
            case Treatment.ASKED:
                if self.state.passes_breaks:
                    return ConstantValue(None)
                asked = GraphBreak("user_break")
                asked.is_done = True
                raise asked
            case Treatment.SKIP:
                raise GraphBreak("call_of_skipped_function", what=target.__qualname__)
            case Treatment.BREAK:
                if (
                    is_a(target, (MethodDescriptorType, WrapperDescriptorType))
                    and args
                    and self._has_rules(target, args[0])
                ):
                    return self.call(
                        frame, NativeMethodValue(self.state.see(args[0]), target.__name__), args[1:], kwargs
                    )
                if not is_a(target, (BuiltinFunctionType, FunctionType, MethodDescriptorType)):
                    return self.call_special_with(function, "__call__", args, kwargs)
                raise GraphBreak("call_of_native_code", what=getattr(target, "__qualname__", str(target)))

    def _is_answered(self, target: Any) -> bool:
        """Whether what a call becomes follows from the object that is called, and not from code that is interpreted."""
        return id(target) in _RULES or self.is_array_call(target) or treatment(target) in _ANSWERED

    def _has_rules(self, method: Any, receiver: Any) -> bool:
        """Whether `list.append(receiver, ...)` is what `receiver.append(...)` is."""
        receiver, owner = self.state.see(receiver), method.__objclass__
        match receiver:
            case SequenceValue() | DictValue() | SetValue():
                return receiver.class_ is owner
            case ConstantValue():
                return type(receiver.value) is owner and hasattr(owner, method.__name__)
            case _:
                return False

    def _call_captured(self, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What `compile` gave: the function itself is called."""
        source = function.source if function.source is not None else KeptSource(function.object, "captured")
        inner, receiver = function.object.__dict__[CAPTURES]
        way = AttributeSource(source, CAPTURES)
        found = self.state.wrap(inner, ItemSource(way, 0))
        first = [self.state.wrap(item, ItemSource(ItemSource(way, 1), index)) for index, item in enumerate(receiver)]
        return self.call(frame, found, [*first, *args], kwargs)

    def _node(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        owner = getattr(target, "__objclass__", None)
        if owner is not None:  # torch.Tensor.add: what a method call is
            receiver = self.state.see(args[0])
            if not isinstance(receiver, TensorValue):
                unsupported(target.__name__, receiver)
            return call_of_tensor(self, receiver, target.__name__, args[1:], kwargs)
        return self.state.operator(target, args, kwargs)

    def _fold(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        seen = [self.state.see(arg) for arg in args]
        if any(isinstance(value, TensorValue) for value in seen):
            raise GraphBreak("data_dependent_read", what=getattr(target, "__name__", str(target)))
        if id(target) in ROUNDING and not kwargs and any(isinstance(value, NumberValue) for value in seen):
            return self.state.operator(target, args, kwargs)
        return self.folded(target, seen, kwargs)

    def folded(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """The result for constants."""
        what = getattr(function, "__name__", str(function))
        for value in (*args, *kwargs.values()):
            self._refuse_metaclass(self.state.see(value), what)
        plain = [self.constant_of(arg, what) for arg in args]
        named = {name: self.constant_of(arg, what) for name, arg in kwargs.items()}
        try:
            result = function(*plain, **named)
        except Exception as error:
            if not is_plain_error(type(error)) or not all(self.is_constant(arg) for arg in error.args):
                raise GraphBreak("op_raises_on_fake", what=what, error=type(error).__name__) from error
            made = ErrorValue(type(error), [ConstantValue(arg) for arg in error.args])
        else:
            return self.value_of(result, what)
        raise UserRaise(made)

    def _refuse_metaclass(self, value: Any, what: str) -> None:
        """What is asked of a class may be its metaclass's to answer, in code of the user's."""
        match value:
            case ObjectValue() if self.plain_of_member(value) is not value:
                pass
            case ObjectValue() if type(value.object) not in _PLAIN_METACLASSES:
                unsupported(what, value)
            case SequenceValue():
                for item in value.items:
                    self._refuse_metaclass(self.state.see(item), what)
            case _:
                pass

    def value_of(self, result: Any, what: str) -> Value:
        """The value of a new object that a fold gave."""
        if isinstance(result, (tuple, list)) and type(result) in (tuple, list):
            return SequenceValue(type(result), [self.value_of(item, what) for item in result])
        if self.is_constant(result):
            return ConstantValue(result)
        raise GraphBreak("op_returns", what=what, result=type(result).__name__)

    # ----------------------------------------------------------------------------------------------------- native methods

    def _call_native_method(
        self, frame: FrameState, method: NativeMethodValue, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        receiver = self.state.see(method.receiver)
        match receiver:
            case TensorValue():
                return call_of_tensor(self, receiver, method.name, args, kwargs)
            case ArrayValue():
                return self.method_of_array(receiver, method.name, args, kwargs)
            case ConstantValue() if args and self.runs_code(args[0]):
                rest = SequenceValue(tuple, args[1:])
                return self.enter_polyfill(polyfills.called_with_list, [method, args[0], rest, self.named(kwargs)])
            case ConstantValue():
                bound = getattr(receiver.value, method.name)
                return self.folded(bound, args, kwargs)
            case RegionValue() if method.name == "__enter__":
                return self.enter_region(receiver)
            case RegionValue():
                return self.leave_region(receiver)
            case ObjectValue() if (rule := CLASS_METHODS.get((id(receiver.object), method.name))) is not None:
                return rule(self, frame, args, kwargs)
            case ObjectValue() | InstanceValue() if has_dict_inside(receiver):
                return self.method_of_dict(receiver, method.name, args, kwargs)
            case ErrorValue() if not kwargs:
                return self.method_of_error(receiver, method.name, args)
            case GeneratorValue() | NativeIteratorValue() | IteratorValue() | CombinedIteratorValue() if not kwargs:
                return self.method_of_generator(receiver, method.name, args)
            case _:
                return method_of_container(self, receiver, method.name, args, kwargs)

    # ------------------------------------------------------------------------------------------------------------- modules

    def _call_module(self, frame: FrameState, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        class_ = type(function.object)
        if is_a(function.object, LazyGraphModule):
            LazyGraphModule.force_recompile(function.object)  # its `forward` is not there before
        if class_.__call__ is _MODULE_CALL and function.source is not None and not self.hooks_of(function):
            forward = self.state.wrap(class_.forward, AttributeSource(class_source(function.object), "forward"))
            return self.call(frame, forward, [function, *args], kwargs)
        return self.call_special_with(function, "__call__", args, kwargs)

    def call_special_with(self, function: ObjectValue, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        found = getattr(type(function.object), name, None)
        if not isinstance(found, FunctionType) or function.source is None:
            raise GraphBreak("call_of_native_code", what=type(function.object).__qualname__)
        way = AttributeSource(class_source(function.object), name)
        return self.enter_function(self.state.wrap(found, way), [function, *args], kwargs)

    # ------------------------------------------------------------------------------------------------- entering functions

    def enter_function(self, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A frame for a function written in Python. Breaks for generators, for code that is not known, for wrong arguments."""
        match function:
            case ObjectValue() if is_a(function.object, FunctionType):
                frame = self._frame_of_object(function, function.object, args, kwargs)
            case FunctionValue():
                frame = self._frame_of_made(function, args, kwargs)
            case _:
                unsupported("a call", function)
        if frame.code.is_generator:
            name, qualname = _names_of(function)
            return GeneratorValue(frame, name, qualname)
        return Enter(frame)

    def _frame_of_object(
        self, value: ObjectValue, function: FunctionType, args: list[Any], kwargs: dict[str, Any]
    ) -> FrameState:
        source = value.source if value.source is not None else KeptSource(function, function.__qualname__)
        if treatment(function) is Treatment.SKIP:
            raise GraphBreak("call_of_skipped_function", what=function.__qualname__)
        self.state.guard(GuardKind.ID, AttributeSource(source, "__code__"), function.__code__)
        where = AttributeSource(source, "__defaults__")
        defaults = [UnreadValue(item, ItemSource(where, i)) for i, item in enumerate(function.__defaults__ or ())]
        where = AttributeSource(source, "__kwdefaults__")
        named = {
            name: UnreadValue(item, ItemSource(where, name)) for name, item in (function.__kwdefaults__ or {}).items()
        }
        where = AttributeSource(source, "__closure__")
        cells = [self.state.wrap(cell, ItemSource(where, i)) for i, cell in enumerate(function.__closure__ or ())]
        return self._frame(function.__code__, function.__globals__, defaults, named, cells, args, kwargs)

    def _frame_of_made(self, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]) -> FrameState:
        defaults = [] if function.defaults is None else self.elements(function.defaults)
        named: dict[str, Any] = {}
        if isinstance(function.keyword_defaults, DictValue):
            named = {key.value: item for key, item in function.keyword_defaults.items.values()}  # pyright: ignore
        cells = [] if function.closure is None else self.elements(function.closure)
        return self._frame(function.code, function.globals, defaults, named, cells, args, kwargs)

    def _frame(
        self, code: Any, globals_: dict[str, Any], defaults: list[Any], named: dict[str, Any], cells: list[Any],
        args: list[Any], kwargs: dict[str, Any],
    ) -> FrameState:  # fmt: skip
        try:
            normalized = normalize(code)
        except UnsupportedCode as error:
            raise GraphBreak("unsupported_code", what=code.co_name, error=str(error)) from error
        self.state.entered[normalized] = None
        bound = bind(normalized, defaults, named, args, kwargs)
        if bound is None:
            raise GraphBreak("op_raises_on_fake", what=code.co_name, error="TypeError")
        slots, rest, surplus = bound
        args_slot, kwargs_slot = surplus_slots(normalized)
        if args_slot is not None:
            slots[args_slot] = SequenceValue(tuple, list(rest))
        if kwargs_slot is not None:
            items = {hash_key_of(name): (ConstantValue(name), value) for name, value in surplus.items()}
            slots[kwargs_slot] = DictValue(items)  # pyright: ignore[reportArgumentType]
        slots[normalized.first_free :] = cells
        return FrameState(
            code=normalized, slots=slots, globals=globals_, builtins=globals_.get("__builtins__", builtins.__dict__)
            if isinstance(globals_.get("__builtins__"), dict) else builtins.__dict__,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------------------- arguments

    def keyword_names(self, names: Any) -> tuple[str, ...]:
        return tuple(self.constant_of(name, "a keyword") for name in self.elements(names))

    def call_ex(self, frame: FrameState, function: Any, args: Any, kwargs: Any) -> Any:
        if self.runs_code(args):
            given = [function, args, self.named({}) if kwargs is None else kwargs]
            return self.enter_polyfill(polyfills.called_with_each, given)
        named: dict[str, Any] = {}
        if kwargs is not None:
            mapping = self.state.see(kwargs)
            if not isinstance(mapping, DictValue):
                unsupported("`**` of a call", mapping)
            named = {self.constant_of(key, "a keyword"): value for key, value in mapping.items.values()}
        return self.call(frame, function, self.elements(args), named)

    # --------------------------------------------------------------------------------------------------------- definitions

    def make_function(self, frame: FrameState, code: Any, qualname: Any) -> Any:
        name = None if qualname is None else self.constant_of(qualname, "a name")
        return FunctionValue(self.constant_of(code, "code"), frame.globals, name)

    def set_function_attribute(self, function: Any, which: str, value: Any) -> Any:
        function = self.state.see(function)
        if not isinstance(function, FunctionValue):
            unsupported(f"an assignment of {which}", function)
        match which:
            case "defaults":
                function.defaults = value
            case "kwdefaults":
                function.keyword_defaults = self.state.see(value)
            case "annotations":
                function.annotations = value
            case "closure":
                function.closure = value
            case _:
                unsupported(which, function)
        return function

    def load_build_class(self, frame: FrameState) -> Any:
        found = frame.builtins.get("__build_class__")
        if found is None:
            raising(NameError)
        return self.state.wrap(found, GlobalSource(KeptSource(frame.builtins, "builtins"), "__build_class__"))

    def import_name(self, frame: FrameState, name: str, names: Any, level: Any) -> Any:
        """A module that is loaded already: importing it again only looks it up."""
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


def _names_of(function: Value) -> tuple[str, str]:
    if isinstance(function, ObjectValue):
        return function.object.__name__, function.object.__qualname__
    assert isinstance(function, FunctionValue)
    return function.code.co_name, function.qualname or getattr(function.code, "co_qualname", function.code.co_name)
