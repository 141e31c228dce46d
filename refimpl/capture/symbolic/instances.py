"""Objects that the segment makes: instances of classes written in Python, and named tuples.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedClassVariable.call_function, UserDefinedObjectVariable
Differs: `__init__` is interpreted as any other function; what a class does in C (`__new__`, a metaclass with a `__call__`), or
without a dict, is a graph break.
"""

from __future__ import annotations

import functools
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import AttributeSource, KeptSource, OwnAttributeSource, Source, class_source
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import MISSING, finds_plainly, in_mro, is_named_tuple
from refimpl.capture.symbolic.dict_objects import dict_base, is_native_method
from refimpl.capture.symbolic.made_modules import is_plain_module
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.values import (
    AttributesValue,
    ConstantValue,
    DictValue,
    ErrorValue,
    FunctionObjectValue,
    InstanceValue,
    MethodValue,
    NativeMethodValue,
    ObjectValue,
    RegionValue,
    SequenceValue,
    Value,
)
from refimpl.capture.symbolic.wrapping import hash_key_of

_INIT_OF_FUNCTION = in_mro(torch.autograd.Function, "__init__")  # says that making one is deprecated
_PLAIN_SETTERS = (object.__setattr__, BaseException.__setattr__)
# Without arguments their `__new__` is that of `object`.
_WITH_PLAIN_NEW = (torch.no_grad, torch.enable_grad)


class SymbolicInstances(SymbolicBase):
    """Making objects, and what is asked of those that were made."""

    def instantiate(self, frame: FrameState, class_value: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A call of a class."""
        class_ = class_value.object
        if is_named_tuple(class_):
            return self._named_tuple(class_, args, kwargs)
        region = self.region(class_, args, kwargs)
        if region is not None:
            return region
        if issubclass(class_, torch.autograd.Function) and in_mro(class_, "__init__") is _INIT_OF_FUNCTION and not args:
            return FunctionObjectValue(class_)
        if issubclass(class_, BaseException):
            return self.make_error(class_, args, kwargs)
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
            made.inside = self.call_dict(args, kwargs)
            made.inside.class_ = base
            return made
        if init is object.__init__:
            if args or kwargs:
                raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
            return made
        if not isinstance(init, FunctionType):
            raise GraphBreak("call_of_native_code", what=f"class {class_.__qualname__}")
        function = self.state.wrap(init, AttributeSource(KeptSource(class_, class_.__qualname__), "__init__"))
        named: dict[Any, tuple[Value, Value]] = {
            hash_key_of(name): (ConstantValue(name), value) for name, value in kwargs.items()
        }
        given = [made, function, SequenceValue(tuple, list(args)), DictValue(named)]
        return self.enter_function(ObjectValue(polyfills.initialised), given, {})

    def _named_tuple(self, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
        fields, defaults = class_._fields, class_._field_defaults
        if len(args) > len(fields) or not kwargs.keys() <= {*fields[len(args) :]}:
            raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
        items = list(args)
        for name in fields[len(args) :]:
            if name in kwargs:
                items.append(kwargs[name])
            elif name in defaults and self.is_constant(defaults[name]):
                items.append(ConstantValue(defaults[name]))
            else:
                raise GraphBreak("op_raises_on_fake", what=class_.__qualname__, error="TypeError")
        return SequenceValue(class_, items)

    # ---------------------------------------------------------------------------------------------------------- attributes

    def attribute_of_instance(self, value: InstanceValue, name: str) -> Any:
        """`value.name`, as `object.__getattribute__` finds it."""
        class_ = value.class_
        if name == "__class__":
            return ObjectValue(class_)
        if name == "__dict__":
            return AttributesValue(value) if _has_dict(class_) else raising(AttributeError)
        if isinstance(value, ErrorValue) and (of_error := self.attribute_of_error(value, name)) is not None:
            return of_error
        found = in_mro(class_, name)
        way = AttributeSource(KeptSource(class_, class_.__qualname__), name)
        if isinstance(found, property) and isinstance(found.fget, FunctionType):
            return self.enter_function(self.state.wrap(found.fget, AttributeSource(way, "fget")), [value], {})
        if found is not MISSING and _is_data_descriptor(found) and not isinstance(found, MemberDescriptorType):
            return self._of_descriptor("__get__", found, name, [value, ObjectValue(class_)])
        if name in value.attributes:
            return value.attributes[name]
        if value.inside is not None and is_native_method(found, class_):
            return NativeMethodValue(value, name)
        if found is MISSING or isinstance(found, MemberDescriptorType):
            in_tables = self.attribute_in_tables(value, name) if issubclass(class_, torch.nn.Module) else None
            return self._missing(value, name) if in_tables is None else in_tables
        if isinstance(found, functools.cached_property) and class_.__setattr__ is object.__setattr__:
            function = self.state.wrap(found.func, AttributeSource(way, "func"))
            return self.enter_polyfill(polyfills.computed_once, [value, function, ConstantValue(name)])
        return self.bound(value, found, class_, way)

    def _missing(self, value: InstanceValue, name: str) -> Any:
        """What the class says of an attribute that there is not."""
        if issubclass(value.class_, torch.nn.Module) and is_plain_module(value.class_):
            raising(AttributeError)
        if self.special(value, "__getattr__") is not None:
            return self.call_special(value, "__getattr__", [ConstantValue(name)])
        if in_mro(value.class_, "__getattr__") is not MISSING:
            unsupported(f"attribute {name}", value)
        raising(AttributeError)

    def bound(self, value: Value, found: Any, class_: type, way: Source) -> Value:
        """What a class has under a name, as it is seen through an instance. `way`: as it is read off the class."""
        if isinstance(found, FunctionType):
            return MethodValue(self.state.wrap(found, way), value)
        if isinstance(found, staticmethod):
            return self.state.wrap(found.__func__, way)
        if isinstance(found, classmethod):
            return MethodValue(self.state.wrap(found.__func__, AttributeSource(way, "__func__")), ObjectValue(class_))
        if hasattr(type(found), "__get__"):
            unsupported("a descriptor", value)
        return self.state.wrap(found, way)

    def set_attribute_of_instance(self, value: InstanceValue, name: str, attribute: Any) -> Enter | None:
        """`value.name = attribute`."""
        class_ = value.class_
        if is_plain_module(class_):
            return self.set_of_module(value, name, attribute)
        if class_.__setattr__ not in _PLAIN_SETTERS:
            return self.call_special(value, "__setattr__", [ConstantValue(name), attribute])
        return self.set_plainly(value, name, attribute)

    def set_plainly(self, value: InstanceValue, name: str, attribute: Any) -> Enter | None:
        """`object.__setattr__(value, name, attribute)`."""
        class_ = value.class_
        found = in_mro(class_, name)
        if isinstance(found, property) and isinstance(found.fset, FunctionType):
            way = AttributeSource(AttributeSource(KeptSource(class_, class_.__qualname__), name), "fset")
            return self.enter_function(self.state.wrap(found.fset, way), [value, attribute], {})
        if name in ("__dict__", "__class__"):
            unsupported(f"an assignment to attribute {name}", value)
        if found is not MISSING and _is_data_descriptor(found) and not isinstance(found, MemberDescriptorType):
            return self._of_descriptor("__set__", found, name, [value, attribute])
        if not isinstance(found, MemberDescriptorType) and not _has_dict(class_):
            raising(AttributeError)
        value.attributes[name] = attribute

    def _of_descriptor(self, method_name: str, found: Any, name: str, args: list[Any]) -> Any:
        """`type(found).__get__(found, ...)` or `__set__`, of a descriptor written in Python; `args`: an instance first."""
        function, class_ = in_mro(type(found), method_name), args[0].class_
        if not isinstance(function, FunctionType):
            unsupported(f"descriptor {name}", args[0])
        owner = next(base for base in class_.__mro__ if name in base.__dict__)
        way = OwnAttributeSource(
            KeptSource(owner, owner.__qualname__), name
        )  # read off the class it may give something else
        method = self.state.wrap(function, AttributeSource(class_source(found), method_name))
        return self.enter_function(method, [self.state.wrap(found, way), *args], {})

    def delete_attribute_of_instance(self, value: InstanceValue, name: str) -> None:
        """`del value.name`."""
        if value.class_.__delattr__ is not object.__delattr__ or name not in value.attributes:
            unsupported(f"deleting attribute {name}", value)
        del value.attributes[name]

    def has_attribute_of_instance(self, value: InstanceValue, name: str) -> bool | None:
        """`hasattr`; None where code of the user's has to be run for it."""
        if name in value.attributes:
            return True
        found = in_mro(value.class_, name)
        if issubclass(value.class_, torch.nn.Module):
            return found is not MISSING or self.attribute_in_tables(value, name) is not None
        if found is MISSING and not isinstance(value, ErrorValue):
            return False if in_mro(value.class_, "__getattr__") is MISSING else None
        return True if isinstance(found, FunctionType) else None

    # ----------------------------------------------------------------------------------------------------- special methods

    def special(self, value: Value, name: str) -> MethodValue | None:
        """A special method written in Python, looked up on the class and bound; None if the class has another one or none."""
        match value:
            case InstanceValue():
                class_, way = value.class_, KeptSource(value.class_, value.class_.__qualname__)
            case ObjectValue():
                class_, way = type(value.object), class_source(value.object)
            case _:
                return None
        found = in_mro(class_, name)
        if not isinstance(found, FunctionType):
            return None
        return MethodValue(self.state.wrap(found, AttributeSource(way, name)), value)

    def enter_context(self, frame: FrameState, manager: Any) -> tuple[Any, Any]:
        """`with manager`: its `__exit__`, and what its `__enter__` gives."""
        manager = self.state.see(manager)
        if isinstance(manager, RegionValue):
            return NativeMethodValue(manager, "__exit__"), self.enter_region(manager)
        enter, exit_ = self.special(manager, "__enter__"), self.special(manager, "__exit__")
        if enter is None or exit_ is None:
            unsupported("with", manager)
        return exit_, self.enter_function(enter.function, [manager], {})

    def plain_equality(self, value: InstanceValue) -> bool:
        """Whether `==` asks for identity."""
        return value.class_.__eq__ is object.__eq__


def _has_plain_new(class_: type) -> bool:
    """By identity: `==` of classes may be a metaclass's."""
    return any(class_ is known for known in _WITH_PLAIN_NEW)


def _is_plain(class_: type, plain_new: Any = object.__new__) -> bool:
    """Whether a call of the class makes an object with a dict, and calls `__init__`."""
    return (
        type(class_).__call__ is type.__call__
        and (class_.__new__ is plain_new or _has_plain_new(class_))
        and finds_plainly(class_)
        and (_has_dict(class_) or (class_.__base__ is object and "__slots__" in class_.__dict__))
        and not getattr(class_, "__abstractmethods__", None)
        and not hasattr(class_, "__del__")
        and not issubclass(class_, (torch.nn.Module, torch.Tensor))
        and not any(isinstance(base.__dict__.get("__dict__"), property) for base in class_.__mro__)
    )


def _has_dict(class_: type) -> bool:
    """Whether instances have a place for names that the class does not know."""
    return class_.__dictoffset__ != 0


def _is_data_descriptor(found: Any) -> bool:
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")
