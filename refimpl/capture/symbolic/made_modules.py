"""Modules that the segment makes: `torch.nn.Module.__init__`, `__setattr__` and `__getattr__` of an object that is not there yet.

Counterpart: torch/_dynamo/variables/nn_module.py UnspecializedNNModuleVariable
Differs: the rest of a module's class is interpreted as that of any other; a parameter made in a segment is a graph break.
"""

from __future__ import annotations

from collections import OrderedDict
from types import FunctionType
from typing import Any

import torch

from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.recognition import defined_in
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import MISSING, in_mro, is_a
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import ConstantValue, DictValue, InstanceValue, ObjectValue, TensorValue, Value

_TABLES = ("_parameters", "_buffers", "_modules")
_MODULE = torch.nn.Module
_INIT = _MODULE.__init__


def is_plain_module(class_: type) -> bool:
    """Whether instances of a class of modules are made, written and read as those of `torch.nn.Module` are."""
    return (
        issubclass(class_, _MODULE)
        and class_.__new__ is object.__new__
        and type(class_).__call__ is type.__call__
        and class_.__getattribute__ is object.__getattribute__
        and class_.__setattr__ is _MODULE.__setattr__
        and in_mro(class_, "__getattr__") is _MODULE.__dict__["__getattr__"]
        and not hasattr(class_, "__del__")
    )


class SymbolicMadeModules(SymbolicBase):
    """State of modules that the segment makes."""

    def begin_module(self, module: InstanceValue) -> None:
        """`torch.nn.Module.__init__`, which takes nothing."""
        bare = _MODULE.__new__(_MODULE)
        _INIT(bare)  # not what a program may have put in its place
        for name, content in vars(bare).items():
            if type(content) in (dict, OrderedDict):
                module.attributes[name] = DictValue({}, None, type(content))
            elif type(content) is set:
                module.attributes[name] = self.build("set", [])
            elif content is None or type(content) is bool:
                module.attributes[name] = ConstantValue(content)
            else:
                unsupported(f"attribute {name}", module)

    def set_of_module(self, module: InstanceValue, name: str, attribute: Value) -> None:
        """`torch.nn.Module.__setattr__`: modules and buffers go into tables."""
        new = self.state.see(attribute)
        tables = [self._table(module, table) for table in _TABLES]
        key = self.hash_key(ConstantValue(name))
        is_parameter = isinstance(new, TensorValue) and isinstance(new.fake, torch.nn.Parameter)
        if is_parameter and new.source is None:  # one that is made here
            unsupported(f"an assignment to attribute {name} of a module", module)
        if in_mro(module.class_, name) is not MISSING and hasattr(type(in_mro(module.class_, name)), "__set__"):
            unsupported(f"an assignment to attribute {name} of a module", module)
        is_module = (isinstance(new, ObjectValue) and is_a(new.object, _MODULE)) or (
            isinstance(new, InstanceValue) and issubclass(new.class_, _MODULE)
        )
        is_buffer = key in tables[1].items and (isinstance(new, TensorValue) or self.is_none(new))
        if is_parameter or is_module or key in tables[2].items or is_buffer or key in tables[0].items:
            table = tables[2] if is_module or key in tables[2].items else tables[1] if is_buffer else tables[0]
            table = tables[0] if is_parameter else table
            if not (is_parameter or is_module or is_buffer or self.is_none(new)):
                raising(TypeError)
            module.attributes.pop(name, None)
            for other in tables:
                if other is not table:
                    other.items.pop(key, None)
            table.items[key] = (ConstantValue(name), new)
            return
        module.attributes[name] = attribute

    def attribute_in_tables(self, module: InstanceValue, name: str) -> Value | None:
        """What `torch.nn.Module.__getattr__` finds."""
        for table in _TABLES:
            found = module.attributes.get(table)
            if isinstance(found, DictValue) and name in found.items:
                return found.items[name][1]
        return None

    def _table(self, module: InstanceValue, name: str) -> DictValue:
        found = module.attributes.get(name)
        if not isinstance(found, DictValue):
            raising(AttributeError)  # before Module.__init__()
        return found


def begin_module(domain: Any, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of `torch.nn.Module.__init__`."""
    module = domain.state.see(args[0]) if args else None
    if len(args) != 1 or kwargs or not isinstance(module, InstanceValue):
        unsupported("torch.nn.Module.__init__", domain.state.see(args[0]))
    domain.begin_module(module)
    return ConstantValue(None)


def is_module_init(function: Any) -> bool:
    """Whether it is what makes a module: torch's own, or what torch.compile puts in its place to count modules."""
    if type(function) is not FunctionType:
        return False
    where = defined_in(function)
    return (where == _MODULE.__module__ and function.__qualname__ == "Module.__init__") or where.endswith(
        "._dynamo.mutation_guard"
    )
