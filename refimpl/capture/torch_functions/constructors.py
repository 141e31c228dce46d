"""Calls of classes that derive from torch.Tensor, and the methods that put a class on a tensor.

Counterpart: torch/_dynamo/variables/torch_function.py TensorSubclassVariable
Differs: the call of a class of wrappers is one node, which calls the class; `__new__` and `__init__` of others are inlined.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import TensorBase
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.rules.rule_table import RuleTable, wrong
from refimpl.capture.values import (
    ConstantValue,
    ObjectValue,
    SequenceValue,
    SubclassTensorValue,
    TensorValue,
    Value,
    polyfills,
)
from refimpl.capture.values.classes import in_mro
from refimpl.capture.values.subclass_tensor import NO_DISPATCH
from refimpl.capture.values.value import unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

CONSTRUCTOR_RULES = RuleTable()
_NEW: Any = TensorBase.__new__
_MAKE: Any = torch.Tensor._make_subclass


def is_tensor_class(class_: type) -> bool:
    """Whether instances of the class are tensors whose making is known: not parameters, which are leaves."""
    return (
        issubclass(class_, torch.Tensor) and class_ is not torch.Tensor and not issubclass(class_, torch.nn.Parameter)
    )


def make_tensor(domain: SymbolicDomain, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of a class of tensors."""
    if type(class_).__call__ is not type.__call__:
        raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
    if hasattr(class_, "__tensor_unflatten__"):
        return domain.state.operator(class_, args, kwargs)
    new, init = in_mro(class_, "__new__"), in_mro(class_, "__init__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    parts: list[Value] = [ObjectValue(class_)]
    for name, found in (("__new__", new), ("__init__", init)):
        is_python = isinstance(found, FunctionType)
        way = AttributeSource(KeptSource(class_, class_.__qualname__), name)
        parts.append(domain.state.wrap(found, way) if is_python else ConstantValue(None))
    if not isinstance(new, FunctionType):
        parts[1] = ObjectValue(_NEW)
    return domain.enter_polyfill(
        polyfills.made_by_class, [*parts, SequenceValue(tuple, list(args)), domain.named(kwargs)]
    )


@CONSTRUCTOR_RULES.of(_NEW)
def _new(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.Tensor.__new__(cls, tensor)`: the same tensor as one of the class."""
    class_, *given = args
    if len(given) != 1 or kwargs:
        raise GraphBreak("call_of_native_code", what="torch.Tensor.__new__")
    return as_subclass(domain, domain.state.realize(given[0]), _class_of(domain, class_))


@CONSTRUCTOR_RULES.of(_MAKE)
def _make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.Tensor._make_subclass(cls, data, require_grad=False)`."""
    given = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    if not {"cls", "data"} <= given.keys() <= {"cls", "data", "require_grad"}:
        wrong("_make_subclass")
    data = domain.state.realize(given["data"])
    if "require_grad" in given and domain.constant_of(given["require_grad"], "require_grad"):
        unsupported("_make_subclass with a gradient", data)
    class_ = _class_of(domain, given["cls"])
    if not isinstance(data, TensorValue) or issubclass(class_, torch.nn.Parameter):
        unsupported("_make_subclass", data)
    detached = domain.state.operator(torch.ops.aten.detach.default, [data], {})
    assert isinstance(detached, TensorValue)
    return _classed(domain, detached, class_)


def as_subclass(domain: SymbolicDomain, value: Any, class_: type) -> Value:
    """`value.as_subclass(class_)`: a view of all of it."""
    if not isinstance(value, TensorValue) or (isinstance(value, SubclassTensorValue) and value.is_wrapper):
        unsupported("as_subclass", value)
    alias = domain.state.operator(torch.ops.aten.alias.default, [value], {})
    assert isinstance(alias, TensorValue)
    return alias if class_ is torch.Tensor else _classed(domain, alias, class_)


def _classed(domain: SymbolicDomain, value: TensorValue, class_: Any) -> Value:
    if class_.__torch_dispatch__ is not NO_DISPATCH:
        unsupported(f"a {class_.__qualname__} without its constructor", value)
    made = SubclassTensorValue(value.node, value.fake, class_)
    made.made_at = value.made_at
    domain.state.by_fake[id(value.fake)] = made
    domain.state.hides_overrides = True
    return made


def _class_of(domain: SymbolicDomain, value: Any) -> type:
    value = domain.state.realize(value)
    if not isinstance(value, ObjectValue) or not value.is_class or not issubclass(value.object, torch.Tensor):
        unsupported("a class of tensors", value)
    return value.object
