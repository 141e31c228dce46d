"""Calls of classes, named tuples among them, and class statements.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedClassVariable.call_function; symbolic_convert.py
LOAD_BUILD_CLASS
Differs: `__init__` is inlined like any other function. A class that does something in C (`__new__`, a metaclass with
`__call__`) or has no instance dict breaks the graph. A class whose body only defines names is made when the segment ends, if it
is still referenced: one that is unused, or used only after a graph break, costs no graph.
"""

from __future__ import annotations

import builtins
import functools
from collections import namedtuple
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from refimpl._torch import is_opaque_literal_class
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.bytecode.errors import UnsupportedCode
from refimpl.capture.bytecode.instructions import NormalizedCode, Op
from refimpl.capture.bytecode.normalize import normalize
from refimpl.capture.guards.sources import AttributeSource, KeptSource, class_source
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.recognition import defined_in
from refimpl.capture.rules.rule_table import RuleTable
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    FunctionValue,
    GraphObjectValue,
    InstanceValue,
    ObjectValue,
    SequenceValue,
    UnmadeClassValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import finds_plainly, in_mro, is_a, is_named_tuple, is_struct_sequence, note_maker
from refimpl.capture.values.error import make_error
from refimpl.capture.values.function import BUILD_CLASS
from refimpl.capture.values.instance import has_instance_dict, is_plain_module
from refimpl.capture.values.program_object import dict_base, is_native_method, plain_dict_of, sequence_base
from refimpl.capture.values.region import region_of
from refimpl.capture.values.value import raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

CLASS_RULES = RuleTable()
_INIT_OF_FUNCTION = in_mro(torch.autograd.Function, "__init__")  # it warns that instantiating the class is deprecated
# Without arguments, the `__new__` of these is that of `object`.
_WITH_PLAIN_NEW = (torch.no_grad, torch.enable_grad)
_METACLASSES = (type, type(torch.autograd.Function))  # they run no code of the user's
_DECORATORS = ("staticmethod", "classmethod", "property")
_READ = ("__name__", *_DECORATORS)
_CALL_OF_TYPE = type.__dict__["__call__"]
_ASKED_FOR = ("__slots__", "__qualname__", "__classcell__")  # names that `type.__new__` treats specially
_CAN_BE_DERIVED_FROM = 1 << 10  # Py_TPFLAGS_BASETYPE


class FunctionObjectValue(Value):
    """An instance of a `torch.autograd.Function` class. A program can only call `apply` on it, which is a method of the class."""

    __slots__ = ("class_",)

    def __init__(self, class_: type) -> None:
        super().__init__()
        self.class_ = class_

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        return domain.load_attr(ObjectValue(self.class_), name) if name == "apply" else super().load_attr(domain, name)


def call_class(domain: SymbolicDomain, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a class, which its metaclass may answer."""
    found = in_mro(type(function.object), "__call__")
    if found is _CALL_OF_TYPE:
        return instantiate(domain, function.object, args, kwargs)
    if not isinstance(found, FunctionType):
        raise GraphBreak("call_of_native_code", what=f"class {function.object.__qualname__}")
    method = domain.state.wrap(found, AttributeSource(class_source(function.object), "__call__"))
    return domain.enter_function(method, [function, *args], kwargs)


@CLASS_RULES.of(_CALL_OF_TYPE)
def _call_of_type(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`type.__call__(class_, ...)`, as a metaclass reaches it through `super()`."""
    class_ = domain.state.realize(args[0]) if args else None
    if not isinstance(class_, ObjectValue) or not class_.is_class:
        raise GraphBreak("call_of_native_code", what="type.__call__")
    return instantiate(domain, class_.object, args[1:], kwargs)


@CLASS_RULES.of(object.__init__)
def _begin_object(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`object.__init__(made)`, which does nothing where it takes nothing."""
    if len(args) != 1 or kwargs or not isinstance(domain.state.realize(args[0]), InstanceValue):
        raise GraphBreak("call_of_native_code", what="object.__init__")
    return ConstantValue(None)


def instantiate(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What `type.__call__` does for a class: makes an object and calls its `__init__`."""
    if is_named_tuple(class_):
        return _named_tuple(domain, class_, args, kwargs)
    if is_struct_sequence(class_):
        return _struct_sequence(domain, class_, args, kwargs)
    region = region_of(domain, class_, args, kwargs)
    if region is not None:
        return region
    if is_opaque_literal_class(class_):
        constants = [domain.constant_of(arg, class_.__qualname__) for arg in args]
        return GraphObjectValue(class_(*constants, **{k: domain.constant_of(v, k) for k, v in kwargs.items()}))
    if issubclass(class_, torch.autograd.Function) and in_mro(class_, "__init__") is _INIT_OF_FUNCTION and not args:
        return FunctionObjectValue(class_)
    if issubclass(class_, BaseException):
        return make_error(domain, class_, args, kwargs)
    is_plain = is_plain_module(class_, class_.__new__) or _is_plain(class_, class_.__new__)
    if isinstance(in_mro(class_, "__new__"), staticmethod) and is_plain:
        return _through_new(domain, class_, args, kwargs)
    base, sequence = dict_base(class_) if issubclass(class_, dict) else None, sequence_base(class_)
    plain_new = dict.__new__ if base else object.__new__ if sequence is None else sequence.__new__
    if is_plain_module(class_):
        pass
    elif not _is_plain(class_, plain_new) or (_has_plain_new(class_) and (args or kwargs)):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    init = in_mro(class_, "__init__")
    inside = DictValue({}, None, base) if base else None
    made = InstanceValue(class_, inside)
    if inside is not None:
        inside.holder = made
    if base is not None and is_native_method(init, class_):
        made.inside = plain_dict_of(domain, args, kwargs)
        made.inside.class_, made.inside.holder = base, made
        return made
    if sequence is tuple:
        _fill_tuple(domain, made, args)
    if sequence is list and is_native_method(init, class_):
        made.call_method_inside(domain, "__init__", args, kwargs)
        return made
    if init is object.__init__:
        if (args and sequence is not tuple) or kwargs:
            raising(TypeError)
        return made
    if not isinstance(init, FunctionType):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    function = domain.state.wrap(init, AttributeSource(KeptSource(class_, class_.__qualname__), "__init__"))
    given = [made, function, SequenceValue(tuple, list(args)), domain.named(kwargs)]
    return domain.enter_polyfill(polyfills.initialised, given)


def _fill_tuple(domain: SymbolicDomain, made: InstanceValue, args: list[Any]) -> None:
    """`tuple.__new__(class_, *args)`."""
    if len(args) > 1 or (args and domain.runs_code(args[0])):
        raise GraphBreak("call_of_native_code", what=f"class {made.class_.__qualname__}")
    if isinstance(made.inside, SequenceValue) and args:
        made.inside.items[:] = domain.elements(args[0])


@CLASS_RULES.of(tuple.__new__)
def _new_tuple(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`tuple.__new__(class_, items)`."""
    class_ = domain.state.realize(args[0]) if len(args) == 2 and not kwargs else None
    if isinstance(class_, ObjectValue) and (class_.object is tuple or is_named_tuple(class_.object)):
        if domain.runs_code(args[1]):
            given = [ObjectValue(tuple.__new__), class_, args[1]]
            return domain.enter_polyfill(polyfills.called_with_second_list, given)
        return SequenceValue(class_.object, domain.elements(args[1]))
    made = _new_sequence(domain, tuple, args, kwargs)
    _fill_tuple(domain, made, args[1:])
    return made


@CLASS_RULES.of(list.__new__)
def _new_list(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`list.__new__(class_)`, which looks at no other argument."""
    return _new_sequence(domain, list, args, kwargs)


def _new_sequence(domain: SymbolicDomain, base: type, args: list[Any], kwargs: dict[str, Any]) -> InstanceValue:
    class_ = domain.state.realize(args[0]) if args else None
    if not isinstance(class_, ObjectValue) or not class_.is_class or kwargs:
        raise GraphBreak("call_of_native_code", what=f"{base.__name__}.__new__")
    if sequence_base(class_.object) is not base or not _is_plain(class_.object, class_.object.__new__):
        raise GraphBreak("call_of_native_code", what=f"{base.__name__}.__new__ of class {class_.object.__qualname__}")
    return InstanceValue(class_.object)


def _through_new(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a class whose `__new__` is written in Python."""
    new, init = in_mro(class_, "__new__").__func__, in_mro(class_, "__init__")
    if not isinstance(new, FunctionType) or not (isinstance(init, FunctionType) or init is object.__init__):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    source = KeptSource(class_, class_.__qualname__)
    made = domain.state.wrap(new, AttributeSource(source, "__new__"))
    begun: Value = ConstantValue(None)
    if isinstance(init, FunctionType):
        begun = domain.state.wrap(init, AttributeSource(source, "__init__"))
    parts = [ObjectValue(class_), made, begun, SequenceValue(tuple, list(args)), domain.named(kwargs)]
    return domain.enter_polyfill(polyfills.made_by_class, parts)


@CLASS_RULES.of(object.__new__)
def _new(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`object.__new__(class_)`."""
    class_ = domain.state.realize(args[0]) if args else None
    if not isinstance(class_, ObjectValue) or not class_.is_class or kwargs:
        raise GraphBreak("call_of_native_code", what="object.__new__")
    is_checked = len(args) > 1 and class_.object.__init__ is object.__init__  # then `object` refuses arguments
    if is_checked or not _is_plain(class_.object, class_.object.__new__):
        raise GraphBreak("call_of_native_code", what=f"object.__new__ of class {class_.object.__qualname__}")
    try:
        object.__new__(class_.object)
    except TypeError as error:  # a class that derives from list, for example
        raise GraphBreak("op_raises_on_fake", what="object.__new__", error="TypeError") from error
    return InstanceValue(class_.object)


@CLASS_RULES.of(namedtuple)
def _new_named_tuple_class(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """`namedtuple(name, fields)`: a class for capture. Where the segment leaves the class, each call makes one of its own."""
    given = [domain.constant_of(arg, "namedtuple") for arg in args]
    named = {"module": frame.globals.get("__name__", "__main__")}
    named |= {name: domain.constant_of(arg, "namedtuple") for name, arg in kwargs.items()}
    if not all(domain.is_constant(item) for item in named.get("defaults") or ()):
        raise GraphBreak("call_of_native_code", what="namedtuple with defaults that are no constants")
    make: Any = functools.partial(namedtuple, *given, **named)
    try:
        made = make()
    except Exception as error:
        raise GraphBreak("op_raises_on_fake", what="namedtuple", error=type(error).__name__) from error
    note_maker(made, make)
    return ObjectValue(made)


def _named_tuple(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    fields, defaults = class_._fields, class_._field_defaults
    if len(args) > len(fields) or not kwargs.keys() <= {*fields[len(args) :]}:
        raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
    items = list(args)
    for name in fields[len(args) :]:
        if name in kwargs:
            items.append(kwargs[name])
        elif name in defaults and domain.is_constant(defaults[name]):
            items.append(ConstantValue(defaults[name]))
        else:
            raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
    return SequenceValue(class_, items)


def _struct_sequence(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """A call such as `torch.return_types.max([values, indices])`."""
    items = domain.elements(args[0]) if len(args) == 1 and not kwargs else []
    if len(items) != class_.n_fields:
        raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
    return SequenceValue(class_, items)


def _has_plain_new(class_: type) -> bool:
    """Compares by identity, because `==` of classes may call a metaclass."""
    return any(class_ is known for known in _WITH_PLAIN_NEW)


def _is_plain(class_: type, plain_new: Any = object.__new__) -> bool:
    """Whether a call of the class makes an object with a dict and calls `__init__`, and nothing else."""
    return (
        (class_.__new__ is plain_new or _has_plain_new(class_))
        and finds_plainly(class_)
        and (has_instance_dict(class_) or all("__slots__" in base.__dict__ for base in class_.__mro__[:-1]))
        and not getattr(class_, "__abstractmethods__", None)
        and not hasattr(class_, "__del__")
        and not issubclass(class_, (torch.nn.Module, torch.Tensor))
        and not any(isinstance(base.__dict__.get("__dict__"), property) for base in class_.__mro__)
    )


def begin_module(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls `torch.nn.Module.__init__`."""
    module = domain.state.realize(args[0]) if args else None
    if len(args) != 1 or kwargs or not isinstance(module, InstanceValue):
        unsupported("torch.nn.Module.__init__", domain.state.realize(args[0]))
    module.begin_module(domain)
    return ConstantValue(None)


def is_module_init(function: Any) -> bool:
    """Whether this is `Module.__init__`: torch's own, or the wrapper that torch.compile installs to count modules."""
    if type(function) is not FunctionType:
        return False
    where = defined_in(function)
    return (where == torch.nn.Module.__module__ and function.__qualname__ == "Module.__init__") or where.endswith(
        "._dynamo.mutation_guard"
    )


# ---------------------------------------------------------------------------------------------------- class statements


@CLASS_RULES.of(BUILD_CLASS)
def _build_class(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Value:
    body, name, *bases = [domain.state.realize(arg) for arg in args]
    if kwargs or len(bases) > 1 or not isinstance(body, FunctionValue) or not isinstance(name, ConstantValue):
        _refuse("keywords, or several bases")
    for base in bases:
        if not (_is_plain_base(base.object) if isinstance(base, ObjectValue) else _has_no_say(base)):
            _refuse("a base that has a say in it")
    try:
        plain = _only_defines(normalize(body.code))
    except UnsupportedCode as error:
        raise GraphBreak("unsupported_code", what=body.code.co_name, error=str(error)) from error
    if not plain:
        _refuse("a body that does more than to define names")
    for read in _DECORATORS:
        if read in body.code.co_names:
            found = domain.state.realize(domain.load_global(frame, read))
            if not isinstance(found, ObjectValue) or found.object is not getattr(builtins, read):
                _refuse(f"another {read}")
    return UnmadeClassValue(body, name.value, bases)


def _refuse(which: str) -> NoReturn:
    raise GraphBreak("unsupported_operation", what=f"a definition with {which}", kind="class")


def _is_plain_base(base: Any) -> bool:
    return (
        is_a(base, type)
        and type(base) in _METACLASSES
        and bool(base.__flags__ & _CAN_BE_DERIVED_FROM)
        and in_mro(base, "__init_subclass__") is object.__dict__["__init_subclass__"]
    )


def _has_no_say(base: Value) -> bool:
    return isinstance(base, UnmadeClassValue) and "__init_subclass__" not in base.body.code.co_names


def _only_defines(code: NormalizedCode) -> bool:
    """Whether a class body reads nothing that may change, and calls only builtin decorators, each on a function."""
    stack: list[
        Any
    ] = []  # of names that were read, constants, codes of functions; a cell or a tuple is represented by its parts
    for instruction in code.instructions:
        match instruction.op, instruction.arg:
            case Op.MAKE_CELL, _:
                pass
            case Op.LOAD_CONST, constant:
                stack.append(constant)
            case Op.LOAD_FAST, _:
                stack.append(CellType)
            case Op.LOAD_NAME, name if name in _READ:
                stack.append(_Named(name))
            case Op.COPY, 1:
                stack.append(stack[-1])
            case Op.BUILD_TUPLE, count:
                del stack[len(stack) - count :]
                stack.append(tuple)
            case (Op.BUILD_MAP | Op.BUILD_CONST_KEY_MAP) as op, count:
                del stack[len(stack) - (2 * count if op is Op.BUILD_MAP else count + 1) :]
                stack.append(dict)
            case Op.MAKE_FUNCTION, has_qualname:
                del stack[len(stack) - has_qualname :]
            case Op.SET_FUNCTION_ATTRIBUTE, _:
                del stack[-2]
            case Op.CALL, 1 if (
                type(stack[-2]) is _Named and stack[-2] in _DECORATORS and isinstance(stack[-1], CodeType)
            ):
                del stack[-2]
            case Op.STORE_NAME, name if _may_store(name, stack.pop()):
                pass
            case Op.RETURN_VALUE, _:
                return True
            case _:
                return False
    return False


class _Named(str):
    """A name that the class body reads."""


def _may_store(name: str, held: Any) -> bool:
    if name in _READ or type(held) is _Named:
        return name == "__module__" and held == "__name__"
    return (
        name not in _ASKED_FOR
        or (name == "__qualname__" and type(held) is str)
        or (name == "__classcell__" and held is CellType)
    )
