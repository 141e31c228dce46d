"""Inlines calls of Python functions, and evaluates calls of C functions on constants.

Counterpart: torch/_dynamo/variables/functions.py UserFunctionVariable, NestedUserFunctionVariable
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, ItemSource, KeptSource
from refimpl.capture.interpreter.arguments import bind, surplus_slots
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.recognition import Treatment, treatment
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    FunctionValue,
    GeneratorValue,
    LazyValue,
    LocalFunctionValue,
    ObjectValue,
    SequenceValue,
    Value,
)
from refimpl.capture.values.classes import is_a
from refimpl.capture.values.error import is_plain_error
from refimpl.capture.values.value import UserRaise, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_PLAIN_METACLASSES = (type, FunctionType, type(torch.Tensor), type(torch.nn.Parameter))


def folded(domain: SymbolicDomain, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Evaluates a function on constants. Breaks the graph if it raises an error that cannot be passed on to the program."""
    what = getattr(function, "__name__", str(function))
    for value in (*args, *kwargs.values()):
        _refuse_metaclass(domain, domain.state.realize(value), what)
    plain = [domain.constant_of(arg, what) for arg in args]
    named = {name: domain.constant_of(arg, what) for name, arg in kwargs.items()}
    try:
        result = function(*plain, **named)
    except Exception as error:
        if not is_plain_error(type(error)) or not all(domain.is_constant(arg) for arg in error.args):
            raise GraphBreak("op_raises_on_fake", what=what, error=type(error).__name__) from error
        raised = UserRaise(type(error), [ConstantValue(arg) for arg in error.args])
    else:
        return domain.value_of(result, what)
    raise raised


def _refuse_metaclass(domain: SymbolicDomain, value: Any, what: str) -> None:
    """Breaks the graph for a class with its own metaclass, which may answer with code of the user's."""
    match value:
        case ObjectValue() if value.plain_of_member() is not value:
            pass
        case ObjectValue() if type(value.object) not in _PLAIN_METACLASSES:
            unsupported(what, value)
        case SequenceValue():
            for item in value.items:
                _refuse_metaclass(domain, domain.state.realize(item), what)
        case _:
            pass


def enter_function(domain: SymbolicDomain, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A frame for a Python function; for a generator function, the generator. Breaks the graph for unsupported code and wrong
    arguments.
    """
    match function:
        case ObjectValue() if is_a(function.object, FunctionType):
            frame = _frame_of_object(domain, function, function.object, args, kwargs)
        case LocalFunctionValue():
            frame = _frame_of_object(domain, function, function.object, args, kwargs)
        case FunctionValue():
            frame = _frame_of_made(domain, function, args, kwargs)
        case _:
            unsupported("a call", function)
    if frame.code.is_generator:
        name, qualname = _names_of(function)
        return GeneratorValue(frame, name, qualname)
    return Enter(frame)


def _frame_of_object(
    domain: SymbolicDomain, value: Value, function: FunctionType, args: list[Any], kwargs: dict[str, Any]
) -> FrameState:
    source = value.source if value.source is not None else KeptSource(function, function.__qualname__)
    if treatment(function) is Treatment.SKIP:
        raise GraphBreak("call_of_skipped_function", what=function.__qualname__)
    domain.state.guard(GuardKind.ID, AttributeSource(source, "__code__"), function.__code__)
    where, found = AttributeSource(source, "__defaults__"), function.__defaults__ or ()
    # The last default belongs to the last parameter, however many there are.
    defaults = [LazyValue(item, ItemSource(where, i - len(found))) for i, item in enumerate(found)]
    where = AttributeSource(source, "__kwdefaults__")
    changed = domain.state.changed_dict(function.__kwdefaults__)
    named: dict[Any, Any] = (
        {name: LazyValue(item, ItemSource(where, name)) for name, item in (function.__kwdefaults__ or {}).items()}
        if changed is None else {name: item for name, (_, item) in changed.items.items()}
    )  # fmt: skip
    where = AttributeSource(source, "__closure__")
    cells = [domain.state.wrap(cell, ItemSource(where, i)) for i, cell in enumerate(function.__closure__ or ())]
    return _frame(domain, function.__code__, function.__globals__, defaults, named, cells, args, kwargs)


def _frame_of_made(
    domain: SymbolicDomain, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]
) -> FrameState:
    defaults = [] if function.defaults is None else domain.elements(function.defaults)
    named: dict[str, Any] = {}
    if isinstance(function.keyword_defaults, DictValue):
        named = {key.value: item for key, item in function.keyword_defaults.items.values()}  # pyright: ignore
    cells = [] if function.closure is None else domain.elements(function.closure)
    return _frame(domain, function.code, function.globals, defaults, named, cells, args, kwargs)


def _frame(
    domain: SymbolicDomain, code: Any, globals_: dict[str, Any], defaults: list[Any], named: dict[str, Any], cells: list[Any],
    args: list[Any], kwargs: dict[str, Any],
) -> FrameState:  # fmt: skip
    try:
        normalized = normalize(code)
    except UnsupportedCode as error:
        raise GraphBreak("unsupported_code", what=code.co_name, error=str(error)) from error
    domain.state.entered[normalized] = None
    bound = bind(normalized, defaults, named, args, kwargs)
    if bound is None:
        raising(TypeError)
    slots, rest, surplus = bound
    args_slot, kwargs_slot = surplus_slots(normalized)
    if args_slot is not None:
        slots[args_slot] = SequenceValue(tuple, list(rest))
    if kwargs_slot is not None:
        items = {name: (ConstantValue(name), value) for name, value in surplus.items()}
        slots[kwargs_slot] = DictValue(items)  # pyright: ignore[reportArgumentType]
    slots[normalized.first_free :] = cells
    return FrameState(
        code=normalized, slots=slots, globals=globals_, builtins=globals_.get("__builtins__", builtins.__dict__)
        if isinstance(globals_.get("__builtins__"), dict) else builtins.__dict__,
    )  # fmt: skip


def _names_of(function: Value) -> tuple[str, str]:
    if isinstance(function, (ObjectValue, LocalFunctionValue)):
        return function.object.__name__, function.object.__qualname__
    assert isinstance(function, FunctionValue)
    return function.code.co_name, function.qualname or getattr(function.code, "co_qualname", function.code.co_name)
