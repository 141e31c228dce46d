"""Calls of classes: instances that the segment makes, and named tuples.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedClassVariable.call_function
Differs: `__init__` is interpreted as any other function; what a class does in C (`__new__`, a metaclass with a `__call__`), or
without a dict, is a graph break.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.recognition import defined_in
from refimpl.capture.values import (
    ConstantValue,
    DictValue,
    FunctionObjectValue,
    InstanceValue,
    SequenceValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import finds_plainly, in_mro, is_named_tuple
from refimpl.capture.values.error import make_error
from refimpl.capture.values.instance import has_instance_dict, is_plain_module
from refimpl.capture.values.program_object import dict_base, is_native_method, plain_dict_of
from refimpl.capture.values.region import region_of
from refimpl.capture.values.value import unsupported

_INIT_OF_FUNCTION = in_mro(torch.autograd.Function, "__init__")  # says that making one is deprecated
# Without arguments their `__new__` is that of `object`.
_WITH_PLAIN_NEW = (torch.no_grad, torch.enable_grad)


def instantiate(domain: Any, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a class."""
    if is_named_tuple(class_):
        return _named_tuple(domain, class_, args, kwargs)
    region = region_of(domain, class_, args, kwargs)
    if region is not None:
        return region
    if issubclass(class_, torch.autograd.Function) and in_mro(class_, "__init__") is _INIT_OF_FUNCTION and not args:
        return FunctionObjectValue(class_)
    if issubclass(class_, BaseException):
        return make_error(domain, class_, args, kwargs)
    base = dict_base(class_) if issubclass(class_, dict) else None
    if is_plain_module(class_):
        pass
    elif not _is_plain(class_, dict.__new__ if base else object.__new__) or (
        _has_plain_new(class_) and (args or kwargs)
    ):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    init = in_mro(class_, "__init__")
    made = InstanceValue(class_, DictValue({}, None, base) if base else None)
    if base is not None and is_native_method(init, class_):
        made.inside = plain_dict_of(domain, args, kwargs)
        made.inside.class_ = base
        return made
    if init is object.__init__:
        if args or kwargs:
            raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
        return made
    if not isinstance(init, FunctionType):
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    function = domain.state.wrap(init, AttributeSource(KeptSource(class_, class_.__qualname__), "__init__"))
    given = [made, function, SequenceValue(tuple, list(args)), domain.named(kwargs)]
    return domain.enter_polyfill(polyfills.initialised, given)


def _named_tuple(domain: Any, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
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


def _has_plain_new(class_: type) -> bool:
    """By identity: `==` of classes may be a metaclass's."""
    return any(class_ is known for known in _WITH_PLAIN_NEW)


def _is_plain(class_: type, plain_new: Any = object.__new__) -> bool:
    """Whether a call of the class makes an object with a dict, and calls `__init__`."""
    return (
        type(class_).__call__ is type.__call__
        and (class_.__new__ is plain_new or _has_plain_new(class_))
        and finds_plainly(class_)
        and (has_instance_dict(class_) or (class_.__base__ is object and "__slots__" in class_.__dict__))
        and not getattr(class_, "__abstractmethods__", None)
        and not hasattr(class_, "__del__")
        and not issubclass(class_, (torch.nn.Module, torch.Tensor))
        and not any(isinstance(base.__dict__.get("__dict__"), property) for base in class_.__mro__)
    )


def begin_module(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of `torch.nn.Module.__init__`."""
    module = domain.state.see(args[0]) if args else None
    if len(args) != 1 or kwargs or not isinstance(module, InstanceValue):
        unsupported("torch.nn.Module.__init__", domain.state.see(args[0]))
    module.begin_module(domain)
    return ConstantValue(None)


def is_module_init(function: Any) -> bool:
    """Whether it is what makes a module: torch's own, or what torch.compile puts in its place to count modules."""
    if type(function) is not FunctionType:
        return False
    where = defined_in(function)
    return (where == torch.nn.Module.__module__ and function.__qualname__ == "Module.__init__") or where.endswith(
        "._dynamo.mutation_guard"
    )
