"""Objects whose class derives from dict or OrderedDict: what is written in C of them is done to the dict inside.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedDictVariable
Differs: of an object that was there before the dict inside may be read only; what would change it is a graph break.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import in_mro, is_a
from refimpl.capture.symbolic.container_methods import method_of_container
from refimpl.capture.symbolic.raising import unsupported
from refimpl.capture.symbolic.values import ConstantValue, DictValue, InstanceValue, ObjectValue, Value

_BASES = (OrderedDict, dict)
_READING = frozenset(
    ["get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__len__", "__iter__", "__init__"]
)
_CHANGING = frozenset(
    ["pop", "setdefault", "update", "clear", "move_to_end", "popitem", "__setitem__", "__delitem__"]
)  # fmt: skip


def dict_base(class_: type) -> type | None:
    """The builtin dict that a class derives from, where nothing of C stands between."""
    base = next((base for base in _BASES if issubclass(class_, base)), None)
    is_plain = class_ not in (OrderedDict, dict) and not issubclass(class_, defaultdict)
    return base if is_plain and class_.__new__ is dict.__new__ else None


def is_native_method(found: Any, class_: type) -> bool:
    """Whether what a class has under a name is a method of the dict inside."""
    return (
        type(found) in (MethodDescriptorType, WrapperDescriptorType)
        and found.__objclass__ in _BASES
        and (dict_base(class_) is not None)
    )


class SymbolicDictObjects(SymbolicBase):
    """Methods of the dict inside."""

    def method_of_dict(self, value: Value, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`dict.name(value, ...)`."""
        if name not in _READING and (name not in _CHANGING or isinstance(value, ObjectValue)):
            unsupported(f"method {name}", value)
        inside = self._inside(value)
        match name:
            case "__init__":
                made = self.call_dict(args, kwargs)
                inside.items.update(made.items)
                return ConstantValue(None)
            case "__getitem__" | "__setitem__" | "__delitem__" | "__contains__" | "__len__" | "__iter__" if kwargs:
                raise GraphBreak("op_raises_on_fake", what=name, error="TypeError")
            case "__getitem__" if (
                hasattr(_class_of(value), "__missing__") and self.hash_key(args[0]) not in inside.items
            ):
                return self.call_special(value, "__missing__", args)
            case "__getitem__":
                return self.get_item(inside, *args)
            case "__setitem__":
                self.set_item(inside, *args)
                return ConstantValue(None)
            case "__delitem__":
                self.delete_item(inside, *args)
                return ConstantValue(None)
            case "__contains__":
                return self.contains(args[0], inside, False)
            case "__len__":
                return ConstantValue(len(inside.items))
            case "__iter__":
                return self.get_iter(inside)
            case _:
                return method_of_container(self, inside, name, args, kwargs)

    def _inside(self, value: Value) -> DictValue:
        if isinstance(value, InstanceValue):
            assert value.inside is not None
            return value.inside
        assert isinstance(value, ObjectValue)
        return self.state.items_of(value)

    def elements_inside(self, value: Value) -> list[Value] | None:
        """What iterating gives, where that is the keys of the dict inside; None otherwise."""
        if not has_native_inside(value, "__iter__"):
            return None
        return [key for key, _ in self._inside(value).items.values()]

    def call_dict(self, args: list[Any], kwargs: dict[str, Any]) -> DictValue:
        """What `dict(*args, **kwargs)` holds, of a plain dict or nothing."""
        given = [self.state.see(arg) for arg in args]
        if len(given) > 1 or (given and not (isinstance(given[0], DictValue) and given[0].class_ in _BASES)):
            raise GraphBreak("call_of_native_code", what="dict.__init__")
        made = DictValue(dict(given[0].items) if given else {})
        for name, value in kwargs.items():
            made.items[self.hash_key(ConstantValue(name))] = (ConstantValue(name), value)
        return made

    def native_special(self, value: Value, name: str, args: list[Value]) -> Any:
        """A special method that a class has of C: only those of the dict inside are known."""
        if isinstance(value, (ObjectValue, InstanceValue)):
            class_ = _class_of(value)
            found = in_mro(class_, name)
            if not isinstance(found, FunctionType) and is_native_method(found, class_):
                given = self.method_of_dict(value, name, args, {})
                return None if name in ("__setitem__", "__delitem__") else given
        unsupported(name, value)


def _class_of(value: Any) -> type:
    return value.class_ if isinstance(value, InstanceValue) else type(value.object)


def has_dict_inside(value: Value) -> bool:
    """Whether it is an object, made or found, of a class that derives from dict."""
    if isinstance(value, InstanceValue):
        return value.inside is not None
    return isinstance(value, ObjectValue) and is_a(value.object, dict) and dict_base(type(value.object)) is not None


def has_native_inside(value: Value, name: str) -> bool:
    """Whether a method of such an object is that of the dict inside."""
    return has_dict_inside(value) and is_native_method(in_mro(_class_of(value), name), _class_of(value))
