"""Rules for builtin functions and classes, for functions of `operator`, and for `inspect.signature`.

Counterpart: torch/_dynamo/variables/builtin.py BuiltinVariable, _fx_graph_functions
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import operator
import sys
import warnings
from collections.abc import Callable
from types import FunctionType, MethodDescriptorType, MethodType, ModuleType, UnionType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import is_exporting, is_opaque_class
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, FactsSource, KeptSource
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.interpreter.frame import UNBOUND, FrameState
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.state.side_effects import LaterCall
from refimpl.capture.values import (
    ArrayValue,
    CellValue,
    ConstantValue,
    DictValue,
    FunctionValue,
    InstanceValue,
    LocalFunctionValue,
    MethodValue,
    NativeMethodValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    SequenceValue,
    SetValue,
    TensorValue,
    UnmadeClassValue,
    Value,
    polyfills,
)
from refimpl.capture.values.array import array_operator
from refimpl.capture.values.classes import MISSING, finds_plainly, in_mro, is_a
from refimpl.capture.values.constant import is_float_of_inputs, known
from refimpl.capture.values.program_object import ProgramObject
from refimpl.capture.values.super import super_value
from refimpl.capture.values.value import raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

BUILTIN_RULES = RuleTable()
_BINDABLE = (FunctionType, MethodDescriptorType, WrapperDescriptorType)
_HELD = (TensorValue, SequenceValue, DictValue, SetValue)  # of the program, these are read from where they are held
_LEGACY_TENSOR_TYPE = type(torch.FloatTensor)  # each instance stands for the tensors of one dtype and device


@BUILTIN_RULES.of(builtins.len)
def _len(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.length(args[0]) if len(args) == 1 and not kwargs else wrong("len")


@BUILTIN_RULES.of(builtins.isinstance)
def _isinstance(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    kinds = _classes(domain, args[1])
    special = [kind for kind in kinds if _has_own_check(kind)]
    if not special:
        return ConstantValue(_is_instance(domain, domain.state.realize(args[0]), tuple(kinds)))
    if any(map(_check_in_python, special)):
        class_ = domain.state.realize(args[0]).class_of()
        return _asked_in_turn(domain, args[0], kinds, "__instancecheck__", lambda kind: class_ is kind, "isinstance")
    if any(_is_users(kind) or _is_users(type(kind)) or isinstance(kind, _LEGACY_TENSOR_TYPE) for kind in special):
        raise GraphBreak("call_of_native_code", what="isinstance")
    value = domain.state.realize(args[0])
    match value:
        case TensorValue():
            return ConstantValue(isinstance(value.fake if _asks_for_mark(kinds) else torch.empty(0), tuple(kinds)))
        case ObjectValue() if not _is_users(type(value.object)) or (
            finds_plainly(type(value.object)) and not any(_may_ask_object(kind) for kind in special)
        ):
            return ConstantValue(isinstance(value.object, tuple(kinds)))
        case ConstantValue():
            return ConstantValue(isinstance(value.value, tuple(kinds)))
        case _:
            return ConstantValue(issubclass(value.class_of(), tuple(kinds)))


def _is_instance(domain: SymbolicDomain, value: Value, kinds: tuple[type, ...]) -> bool:
    """Whether `isinstance` holds by the classes alone, with a guard on the bases of a class of the program."""
    class_ = value.class_of()
    _guard_bases(domain, class_)
    holds = issubclass(class_, kinds)
    if not holds and in_mro(class_, "__class__") is not object.__dict__["__class__"]:
        raise GraphBreak("call_of_native_code", what="isinstance")  # it asks the object for its class
    return holds


def _guard_bases(domain: SymbolicDomain, class_: type) -> None:
    """Guards that nothing is assigned to `__bases__` of a class of the program, or of its bases: that makes another tuple."""
    if _is_users(class_) and type(class_).__getattribute__ is type.__getattribute__:
        way = AttributeSource(KeptSource(class_, class_.__qualname__), "__mro__")
        domain.state.guard(GuardKind.ID, way, class_.__mro__)


def _check_in_python(class_: type, name: str = "__instancecheck__") -> FunctionType | None:
    """The method of the metaclass that answers `isinstance`, if it is written in Python and not in the standard library."""
    found = in_mro(type(class_), name)
    return found if isinstance(found, FunctionType) and _is_users(type(class_)) else None


def _asked_in_turn(
    domain: SymbolicDomain, value: Any, kinds: list[type], name: str, holds: Callable[[type], bool], what: str
) -> Any:
    """`isinstance` or `issubclass` where methods of metaclasses answer for some of the classes."""
    asked: list[tuple[Value, Value]] = []
    for kind in kinds:
        function = _check_in_python(kind, name)
        if function is None:
            if _has_own_check(kind):
                raise GraphBreak("call_of_native_code", what=what)
            asked.append((ConstantValue(None), ConstantValue(holds(kind))))
        elif name == "__instancecheck__" and holds(kind):
            asked.append((ConstantValue(None), ConstantValue(True)))  # it is not asked about its own instances
        else:
            way = AttributeSource(KeptSource(type(kind), type(kind).__qualname__), name)
            asked.append((domain.state.wrap(function, way), ObjectValue(kind)))
    pairs: list[Value] = [SequenceValue(tuple, list(pair)) for pair in asked]
    return domain.enter_polyfill(polyfills.holds_for_any, [SequenceValue(tuple, pairs), value])


def _has_own_check(class_: type) -> bool:
    """Whether `isinstance` calls code of the class or its metaclass."""
    return type(class_).__instancecheck__ is not type.__instancecheck__ and not is_opaque_class(class_)


def _asks_for_mark(classes: list[type]) -> bool:
    """Whether the class is Parameter or Buffer, which a mark on a tensor decides."""
    return torch.nn.Parameter in classes or torch.nn.Buffer in classes


def _may_ask_object(class_: type) -> bool:
    """Whether the class is a protocol, which looks up attributes of the object and so may run its code."""
    return bool(getattr(class_, "_is_protocol", False))


@BUILTIN_RULES.of(builtins.issubclass)
def _issubclass(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    class_ = domain.constant_of(args[0], "issubclass")
    if not is_a(class_, type):
        raising(TypeError)
    kinds = _classes(domain, args[1])
    if any(_check_in_python(kind, "__subclasscheck__") for kind in kinds):
        return _asked_in_turn(
            domain, args[0], kinds, "__subclasscheck__", lambda kind: issubclass(class_, kind), "issubclass"
        )
    if any(_has_own_check(kind) and (_is_users(kind) or _is_users(type(kind))) for kind in kinds):
        raise GraphBreak("call_of_native_code", what="issubclass")
    _guard_bases(domain, class_)
    return ConstantValue(issubclass(class_, tuple(kinds)))


def _classes(domain: SymbolicDomain, value: Any) -> list[type]:
    value = domain.state.realize(value)
    if isinstance(value, SequenceValue):
        return [class_ for item in value.items for class_ in _classes(domain, item)]
    if isinstance(value, ObjectValue) and is_a(value.object, type):
        return [value.object]
    if isinstance(value, ObjectValue) and is_a(value.object, UnionType):
        return list(value.object.__args__)
    unsupported("isinstance()", value)


def _is_users(class_: Any) -> bool:
    module = getattr(class_ if isinstance(class_, type) else type(class_), "__module__", "")
    return module.partition(".")[0] not in ("builtins", "torch", "abc", "collections", "typing", "numbers", "enum")


@BUILTIN_RULES.of(builtins.type)
def _type(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise GraphBreak("call_of_native_code", what="type")
    return ObjectValue(domain.state.realize(args[0]).class_of())


@BUILTIN_RULES.of(builtins.callable)
def _callable(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = domain.state.realize(args[0])
    if isinstance(value, (FunctionValue, MethodValue, NativeMethodValue, PartialValue, UnmadeClassValue)):
        return ConstantValue(True)
    if isinstance(value, InstanceValue) or (isinstance(value, ObjectValue) and value.is_object):
        is_callable = in_mro(value.class_of(), "__call__") is not MISSING
        if value.source is not None:
            domain.state.guard(GuardKind.EQUALS, FactsSource(value.source, callable), is_callable)
        return ConstantValue(is_callable)
    return ConstantValue(callable(value.object) if isinstance(value, ObjectValue) else False)


@BUILTIN_RULES.of(builtins.id)
def _id(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The id of an object of the program. A tensor or a container may be freed before the next call: its guard compares ids."""
    value = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    if isinstance(value, _HELD) and value.source is not None:
        address = id(domain.state.object_of(value))
        domain.state.guard(GuardKind.ADDRESS, value.source, address)
        return ConstantValue(address)
    if not isinstance(value, ObjectValue) or is_a(value.object, torch.Tensor):
        raise GraphBreak("call_of_native_code", what="id")
    if value.source is not None:
        domain.state.guard(GuardKind.ID, value.source, value.object)
    return ConstantValue(id(value.object))


@BUILTIN_RULES.of(builtins.next)
def _next(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    iterator = domain.state.realize(args[0]) if 1 <= len(args) <= 2 and not kwargs else None
    if isinstance(iterator, InstanceValue):
        if len(args) > 1:
            return domain.enter_polyfill(polyfills.next_by, args)
        return domain.call_special(iterator, "__next__", [])
    if iterator is None or not iterator.is_iterator:
        raise GraphBreak("call_of_native_code", what="next")
    if len(args) == 1:
        return iterator.call_method(domain, frame, "__next__", [], {})
    return domain.enter_polyfill(polyfills.next_or, args)


@BUILTIN_RULES.of(builtins.range)
def _range(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.folded(range, args, kwargs)


@BUILTIN_RULES.of(builtins.slice)
def _slice(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 3 or kwargs:
        raising(TypeError)
    return domain.build("slice", [ConstantValue(None), *args] if len(args) == 1 else list(args))


@BUILTIN_RULES.of(builtins.vars)
def _vars(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise GraphBreak("call_of_native_code", what="vars")
    if domain.has_attribute(args[0], "__dict__") is False:
        raising(TypeError)
    return domain.load_attr(args[0], "__dict__")


@BUILTIN_RULES.of(sys.exc_info)
def _exc_info(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Three times None: contextlib looks for the end of a chain of contexts, and exceptions here have no contexts."""
    if frame.code.code.co_filename != contextlib.__file__ or frame.handled is not None:
        raise GraphBreak("call_of_native_code", what="sys.exc_info")
    return SequenceValue(tuple, [ConstantValue(None)] * 3)


def _exception(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """None: contextlib calls it in place of `sys.exc_info` since Python 3.13."""
    if frame.code.code.co_filename != contextlib.__file__ or frame.handled is not None:
        raise GraphBreak("call_of_native_code", what="sys.exception")
    return ConstantValue(None)


if hasattr(sys, "exception"):  # exists from 3.11 on
    BUILTIN_RULES.of(getattr(sys, "exception"))(_exception)


@BUILTIN_RULES.of(MethodType)
def _method(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    seen = [domain.state.realize(arg) for arg in args]
    is_function = (
        len(seen) == 2
        and not kwargs
        and (
            isinstance(seen[0], FunctionValue)
            or (isinstance(seen[0], ObjectValue) and type(seen[0].object) in _BINDABLE)
        )
    )
    if not is_function:
        raise GraphBreak("call_of_native_code", what="class method")
    return MethodValue(*seen)


@BUILTIN_RULES.of(builtins.getattr)
def _getattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = domain.constant_of(args[1], "getattr")
    if type(name) is not str:
        wrong("getattr")
    if len(args) > 2:
        there_is = domain.has_attribute(args[0], name)
        if there_is is None:
            return domain.enter_polyfill(polyfills.attribute_or, args)
        if not there_is:
            return args[2]
    return domain.load_attr(args[0], name)


@BUILTIN_RULES.of(builtins.hasattr)
def _hasattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = domain.constant_of(args[1], "hasattr")
    if type(name) is not str:
        wrong("hasattr")
    there_is = domain.has_attribute(args[0], name)
    return domain.enter_polyfill(polyfills.has, args) if there_is is None else ConstantValue(there_is)


@BUILTIN_RULES.of(builtins.setattr)
def _setattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = domain.constant_of(args[1], "setattr")
    target = domain.state.realize(args[0])
    is_object = isinstance(target, (InstanceValue, ObjectValue)) and target.is_object
    is_object = is_object and not issubclass(target.class_of(), (torch.nn.Module, torch.Tensor))
    setter = domain.special(target, "__setattr__") if is_object else None
    if setter is not None:
        return domain.enter_polyfill(polyfills.called_for_nothing, [setter, *args[1:]])
    if type(name) is not str or domain.store_attr(args[0], name, args[2]) is not None:
        raise GraphBreak("call_of_native_code", what="setattr of a property")
    return ConstantValue(None)


@BUILTIN_RULES.of(builtins.delattr)
def _delattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = domain.constant_of(args[1], "delattr") if len(args) == 2 and not kwargs else wrong("delattr")
    if type(name) is not str or domain.delete_attr(args[0], name) is not None:
        raise GraphBreak("call_of_native_code", what="delattr")
    return ConstantValue(None)


@BUILTIN_RULES.of(object.__getattribute__)
def _object_getattribute(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = domain.state.realize(args[0]) if len(args) == 2 and not kwargs else None
    name = domain.constant_of(args[1], "__getattribute__")
    if type(name) is not str or not isinstance(found, ObjectValue) or found.source is None:
        raise GraphBreak("call_of_native_code", what="object.__getattribute__")
    if is_a(found.object, (type, ModuleType, FunctionType, torch.Tensor)):
        raise GraphBreak("call_of_native_code", what="object.__getattribute__")
    return found.plain_attribute(domain, name)


@BUILTIN_RULES.of(torch.nn.Module.__getattr__)
def _module_getattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    module = domain.state.realize(args[0]) if len(args) == 2 and not kwargs else None
    name = domain.constant_of(args[1], "__getattr__")
    if type(name) is not str or not isinstance(module, ObjectValue):
        raise GraphBreak("call_of_native_code", what="Module.__getattr__")
    return module.of_module(domain, name)


@BUILTIN_RULES.of(object.__setattr__)
def _object_setattr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    made = domain.state.realize(args[0]) if len(args) == 3 and not kwargs else None
    if isinstance(made, ObjectValue) and is_a(made.object, torch.nn.Module):
        unsupported("object.__setattr__", made)
    name = domain.constant_of(args[1], "__setattr__") if isinstance(made, (InstanceValue, ObjectValue)) else None
    if made is None or type(name) is not str or made.set_plainly(domain, name, args[2]) is not None:
        raise GraphBreak("call_of_native_code", what="object.__setattr__")
    return ConstantValue(None)


@BUILTIN_RULES.of(builtins.super)
def _super(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args:
        return super_value(domain, *args) if len(args) == 2 else wrong("super")
    return super_value(domain, *_super_arguments(domain, frame))


def _super_arguments(domain: SymbolicDomain, frame: FrameState) -> tuple[Any, Any]:
    code = frame.code
    if not code.code.co_argcount or "__class__" not in code.slots:
        raise GraphBreak("op_raises_on_fake", what="super()", error="RuntimeError")
    receiver = frame.slots[0]
    if 0 in code.cells and isinstance(receiver, CellValue):
        receiver = domain.cell_value(receiver)
    class_ = domain.cell_value(frame.slots[code.slots.index("__class__")])
    if receiver is UNBOUND or class_ is UNBOUND:
        raise GraphBreak("op_raises_on_fake", what="super()", error="RuntimeError")
    return class_, receiver


@BUILTIN_RULES.of(getattr(warnings, "_filters_mutated"))
def _filters_mutated(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A change of the filters of warnings, as at both ends of `warnings.catch_warnings`: told once, after the filters are set."""
    function = ObjectValue(getattr(warnings, "_filters_mutated"))
    calls = domain.state.effects.later_calls
    if not any(isinstance(call.function, ObjectValue) and call.function.object is function.object for call in calls):
        at = domain.state.position()
        domain.state.effects.call_later(LaterCall(function=function, args=(), kwargs={}, versions=(), at=at))
    return ConstantValue(None)


@BUILTIN_RULES.of(builtins.print, builtins.input)
def _print(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raise GraphBreak("output_of_program", what="print")


def _number_rule(class_: type) -> Rule:
    def convert(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        seen = [domain.state.realize(arg) for arg in args]
        if len(seen) == 1 and isinstance(seen[0], NumberValue) and not kwargs and domain.state.is_whole:
            found = _converted_when_run(domain, class_, seen[0])
            if found is not None:
                return found
        if class_ is bool and len(seen) == 1 and not isinstance(seen[0], TensorValue):
            truth = domain.truth(seen[0])
            return ConstantValue(truth) if type(truth) is bool else domain.enter_polyfill(polyfills.truth_of, [seen[0]])
        if any(isinstance(value, TensorValue) for value in seen):
            if not domain.state.reads_data or class_ not in (bool, int, float) or len(seen) > 1:
                raise GraphBreak("data_dependent_read", what=f"{class_.__name__}()")
            seen = [domain.state.operator("item", seen, {}, kind="call_method")]
        if len(seen) == 1 and isinstance(seen[0], NumberValue) and seen[0].class_of() is class_ and not kwargs:
            return seen[0]
        if class_ is bool and len(seen) == 1 and isinstance(seen[0], NumberValue) and domain.state.is_read(seen[0]):
            return domain.state.arithmetic(operator.ne, [seen[0], ConstantValue(0)])
        if class_ is int and len(seen) == 1 and is_float_of_inputs(seen[0]) and not kwargs:
            return known(domain, domain.state.arithmetic(math.trunc, seen))  # a guard on the integer alone
        if class_ is float and len(seen) == 1 and isinstance(seen[0], NumberValue):
            return domain.state.operator(torch.sym_float, seen, {})
        if class_ is str and len(seen) == 1 and not kwargs:
            return domain.convert("s", seen[0])
        if len(seen) == 1 and isinstance(seen[0], (InstanceValue, ObjectValue)) and seen[0].is_object:
            plain = seen[0].plain_of_member()
            return domain.folded(class_, [plain], {}) if plain is not seen[0] else _converted(domain, class_, seen[0])
        return domain.folded(class_, seen, kwargs)

    return convert


def _converted_when_run(domain: SymbolicDomain, class_: type, value: NumberValue) -> Value | None:
    """`bool` or `int` of a number that is known only when the program runs, as a number; None for other numbers. `int` of every
    float in an exported program, which would be held to the example's."""
    if class_ is int and isinstance(value.number, torch.SymFloat) and is_exporting():
        return domain.state.operator(torch.sym_int, [value], {})
    if not domain.state.is_read(value):
        return None
    if class_ is bool:
        if isinstance(value.number, torch.SymBool):
            return value
        return domain.state.arithmetic(operator.ne, [value, ConstantValue(0)])
    if class_ is int and isinstance(value.number, torch.SymFloat):
        return domain.state.operator(torch.sym_int, [value], {})
    return None


def _converted(domain: SymbolicDomain, class_: type, value: Value) -> Any:
    """`int(value)` of an object whose class defines the conversion."""
    name = f"__{class_.__name__}__"
    if not isinstance(value, ProgramObject) or domain.special(value, name) is None:
        unsupported(f"{name[2:-2]}()", value)
    return value.as_number(domain, class_)


@BUILTIN_RULES.of(builtins.repr)
def _repr(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.convert("r", args[0]) if len(args) == 1 and not kwargs else wrong("repr")


@BUILTIN_RULES.of(builtins.format)
def _format(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return domain.format(args[0], args[1] if len(args) > 1 else None) if 1 <= len(args) <= 2 else wrong("format")


@BUILTIN_RULES.of(builtins.abs)
def _abs(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else wrong("abs")
    if isinstance(value, TensorValue):
        return domain.state.operator(torch.abs, [value], {})
    if isinstance(value, ArrayValue):
        return array_operator(domain, abs, [value])
    if isinstance(value, NumberValue):
        return domain.state.arithmetic(abs, [value])
    if isinstance(value, InstanceValue):
        return domain.call_special(value, "__abs__", [])
    return domain.folded(abs, [value], {})


for _class in (bool, int, float, complex, str):
    BUILTIN_RULES[id(_class)] = _number_rule(_class)


# Attributes that override the signature of a function.
_ELSEWHERE = ("__wrapped__", "__signature__", "__text_signature__")


@BUILTIN_RULES.of(inspect.signature)
def _signature(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    function = given.function if isinstance(given, MethodValue) else given
    function = domain.state.realize(function)
    if not isinstance(function, (ObjectValue, LocalFunctionValue)) or not is_a(function.object, FunctionType):
        raise GraphBreak("call_of_native_code", what="inspect.signature")
    plain = function.object
    if any(name in plain.__dict__ for name in _ELSEWHERE) or function.source is None:
        raise GraphBreak("call_of_native_code", what="inspect.signature")
    for name in _ELSEWHERE:
        domain.state.guard(GuardKind.WITHOUT, function.source, name)
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
        domain.state.guard(GuardKind.ID, AttributeSource(function.source, name), getattr(plain, name))
    found = inspect.signature(plain)
    if given is not function:
        parameters = list(found.parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise GraphBreak("call_of_native_code", what="inspect.signature")
        found = found.replace(parameters=parameters[1:])
    return domain.state.wrap(found, KeptSource(found, f"signature of {plain.__qualname__}"))


# ------------------------------------------------------------------------------------------- functions of `operator`


def _note(function: Any, count: int, answer: Callable[..., Any]) -> None:
    def rule(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != count or kwargs:
            wrong(function.__name__)
        return answer(domain, *args)

    BUILTIN_RULES[id(function)] = rule


def _without_value(entered: Any, what: str) -> Any:
    """None, if no function was inlined: one would push its own result."""
    if entered is not None:
        raise GraphBreak("call_of_native_code", what=what)
    return ConstantValue(None)


def _operator_truth(domain: SymbolicDomain, value: Any) -> Any:
    found = domain.truth(value)
    return ConstantValue(found) if type(found) is bool else domain.enter_polyfill(polyfills.truth_of, [value])


for _sign, _function in BINARY.items():
    _note(_function, 2, lambda domain, left, right, sign=_sign: domain.binary(sign, left, right))
for _sign, _function in COMPARE.items():
    _note(_function, 2, lambda domain, left, right, sign=_sign: domain.compare(sign, left, right))
for _sign, _function in UNARY.items():
    _note(_function, 1, lambda domain, value, sign=_sign: domain.unary(sign, value))
_note(operator.truth, 1, _operator_truth)
_note(operator.is_, 2, lambda domain, left, right: domain.identical(left, right, False))
_note(operator.is_not, 2, lambda domain, left, right: domain.identical(left, right, True))
_note(operator.contains, 2, lambda domain, container, item: domain.contains(item, container, False))
_note(operator.getitem, 2, lambda domain, container, key: domain.get_item(container, key))
_note(
    operator.setitem, 3,
    lambda domain, container, key, item: _without_value(domain.set_item(container, key, item), "setitem"),
)  # fmt: skip
_note(
    operator.delitem, 2, lambda domain, container, key: _without_value(domain.delete_item(container, key), "delitem")
)  # fmt: skip
