"""Objects of the program, made before the segment: functions, classes, modules, and instances of the program's classes.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedObjectVariable.var_getattr, nn_module.py
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from enum import Enum, EnumMeta
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from refimpl._torch import OpOverload, OpOverloadPacket
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import (
    AttributeSource,
    FactsSource,
    ItemSource,
    KeptSource,
    OwnAttributeSource,
    PlainAttributeSource,
    Source,
    class_source,
)
from refimpl.capture.recognition import names_of
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import MethodValue, NativeMethodValue, bound_by_get
from refimpl.capture.values.classes import (
    MISSING,
    combines_as_flag,
    defining_package,
    finds_plainly,
    has_own_attributes,
    in_mro,
    is_a,
    is_annotation,
    is_data_descriptor,
    is_enumeration,
    is_read_property,
    own_attributes,
    writes,
)
from refimpl.capture.values.constant import ConstantValue, NumberValue
from refimpl.capture.values.function import FunctionValue
from refimpl.capture.values.hashing import Member, frozen_fields, has_own_key, is_compared_by_identity
from refimpl.capture.values.mapping import DictValue
from refimpl.capture.values.program_object import ProgramObject, dict_base, is_native_method, sequence_base
from refimpl.capture.values.region import region_of_object
from refimpl.capture.values.sequence import FIELD, SequenceValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import DELETED, TEXTS, UserRaise, Value, before_the_end, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_VF: Any = vars(torch.nn.functional)["_VF"]  # a module whose class has a `__getattr__` that returns C functions
_NEVER_REGISTERED = (ConstantValue, NumberValue, SequenceValue, DictValue, TensorValue)
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_OF_FUNCTIONS = frozenset(
    ["__name__", "__qualname__", "__module__", "__doc__", "__code__", "__defaults__", "__kwdefaults__", "__closure__",
     "__annotations__"]
)  # fmt: skip
_GIVEN_AS_THEY_ARE = (
    FunctionType,
    WrapperDescriptorType,
    MethodDescriptorType,
)  # descriptors that a class returns unbound
_GIVEN_OF_CLASSES = (property, MemberDescriptorType, GetSetDescriptorType, FIELD)  # those whose subclasses may not
_IN_C = (
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    MethodWrapperType,
    OpOverload,
    OpOverloadPacket,
)
_COMPARED_IN_C = (
    *_IN_C,
    FunctionType,
    GetSetDescriptorType,
)  # known by identity, and compared without code of the user's
_NAMES_IN_C = ("__name__", "__qualname__", "__module__", "__doc__")
_SUBCLASSES = type.__dict__["__subclasses__"]
_PLAIN_SETTERS = (object.__setattr__, torch.nn.Module.__setattr__, threading.local.__setattr__)
_PLAIN_GETTERS = (object.__getattribute__, type.__getattribute__, ModuleType.__getattribute__)
_MODULE_GETATTR = torch.nn.Module.__dict__["__getattr__"]
_PLAIN = (FunctionType, ModuleType, type)
_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_NAMES = ("__name__", "__qualname__")
_NAMES_OF_CLASSES = (*_NAMES, "__module__")
_MAY_CHANGE = 1 << 9  # the bit of `__flags__` of classes that are not of C, whose name and bases the program may assign
_PLAIN_EQUALITY = (object.__eq__, type.__eq__)
# classes for which `list[int]` is supported
_GENERIC = (list, dict, tuple, set, frozenset, type, deque, OrderedDict, defaultdict)
# Their `__iter__` iterates over the dict of their modules.
_OF_MODULES = tuple(class_.__iter__ for class_ in (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict))


class ObjectValue(ProgramObject):
    """An object of the program, guarded by identity or type: a function, a class, a module, an instance of a class."""

    __slots__ = ("object",)

    def __init__(self, object_: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = object_

    @property
    def kind(self) -> str:
        return type(self.object).__name__

    @property
    def is_object(self) -> bool:
        return not is_a(self.object, _PLAIN) and type(self.object).__module__ != "builtins"

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return is_a(self.object, type)

    @property
    def equality_is_identity(self) -> bool:
        return any(type(self.object).__eq__ is known for known in _PLAIN_EQUALITY)

    @property
    def is_operand_of_tensors(self) -> bool:
        return False

    def class_of(self) -> type:
        return type(self.object)

    def way_to_class(self) -> Source:
        return class_source(self.object)

    def constant(self, domain: SymbolicDomain, what: str) -> Any:
        is_known = is_a(self.object, (type, FunctionType)) or self.plain_of_member() is not self
        return self.object if is_known else unsupported(what, self)

    def hash_key(self, domain: SymbolicDomain) -> Any:
        if has_own_key(self.object):
            return self.object
        if is_compared_by_identity(type(self.object)):
            domain.state.note_key(self)
            return Member(self)
        unsupported("a key", self)

    def plain_of_member(self) -> Value:
        if is_a(self.object, Enum):
            for kind, convert in ((int, int.__int__), (str, str.__str__), (float, float.__float__)):
                if is_a(self.object, kind):
                    return ConstantValue(convert(self.object))
        return self

    # -------------------------------------------------------------------------------------------------- operators

    def truth(self, domain: SymbolicDomain) -> Any:
        if combines_as_flag(self.object):
            return bool(self.object.value)
        return True if self.is_class else super().truth(domain)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if sign == "|" and isinstance(left, ObjectValue) and is_annotation(left.object):
            if isinstance(right, ObjectValue) and is_annotation(right.object):
                return _typing_of(operator.or_, left.object, right.object)
            if isinstance(right, (ObjectValue, ConstantValue)):
                return (
                    _typing_of(operator.or_, left.object, None) if domain.is_none(right) else unsupported("`|`", left)
                )
        if sign == "|" and domain.is_none(left) and isinstance(right, ObjectValue) and is_annotation(right.object):
            return _typing_of(operator.or_, None, right.object)
        return super().binary(domain, sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if not self.is_object and sign in ("==", "!=") and isinstance(left, ObjectValue):
            is_plain = type(left.object).__eq__ in _PLAIN_EQUALITY
            if (
                isinstance(right, ObjectValue)
                and is_a(left.object, _COMPARED_IN_C)
                and is_a(right.object, _COMPARED_IN_C)
            ):
                return ConstantValue((left.object == right.object) is (sign == "=="))
            if isinstance(right, ObjectValue):
                if is_plain and type(right.object).__eq__ in _PLAIN_EQUALITY:
                    return domain.identical(left, right, sign == "!=")
                unsupported(f"`{sign}`", left)
            if isinstance(right, FunctionValue) and is_plain:
                return domain.identical(left, right, sign == "!=")
            if isinstance(right, ConstantValue) and is_plain:
                return ConstantValue(sign == "!=")
        return super().compare(domain, sign, left, right)

    def text(self, domain: SymbolicDomain, kind: str) -> Any:
        if not is_a(self.object, FunctionType):
            return super().text(domain, kind)
        domain.load_attr(self, "__qualname__")  # with a guard; the address follows from the identity
        return ConstantValue(TEXTS[kind](self.object))

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        object_, source = self.object, self.source
        if source is None:
            source = KeptSource(object_, getattr(object_, "__name__", type(object_).__name__))
        if is_a(object_, _NATIVE) and name in _NAMES:
            return ConstantValue(getattr(object_, name))
        if is_a(object_, ModuleType):
            if type(object_).__getattribute__ is not ModuleType.__getattribute__:
                unsupported(f"attribute {name}", self)
            return self._of_namespace(domain, names_of(object_, name), source, name)
        if is_a(object_, type):
            return self.attribute_of_class(domain, source, name)
        if name == "__dict__" and self.source is not None and has_own_attributes(object_):
            if not is_a(object_, (FunctionType, torch.Tensor)):
                return domain.state.attributes_of(self)
        if is_a(object_, torch.Tensor) or name == "__dict__":
            unsupported(f"attribute {name}", self)
        if is_a(object_, FunctionType) and name == "__get__":
            return NativeMethodValue(self, name)
        if is_a(object_, FunctionType) and (written := domain.state.effects.attribute(self, name)) is not None:
            return written
        if is_a(object_, FunctionType):
            return self._of_namespace(domain, vars(object_), source, name)
        if is_a(object_, _IN_C) and name in _NAMES_IN_C and type(getattr(object_, name, None)) is str:
            return ConstantValue(getattr(object_, name))  # it is known by identity
        if is_a(object_, (GetSetDescriptorType, MemberDescriptorType, property)) and name in ("__get__", "__set__"):
            return ObjectValue(getattr(object_, name))
        if is_a(object_, OpOverloadPacket):
            getattr(object_, name, None)  # overloads exist only after they have been read
        return self._of_instance(domain, object_, source, name)

    def _of_namespace(self, domain: SymbolicDomain, names: dict[str, Any], source: Source, name: str) -> Value:
        written = domain.state.effects.global_(names, name)
        if written is not None:
            return written
        if name not in names:
            is_function = is_a(self.object, FunctionType)
            if name in _OF_FUNCTIONS if is_function else self.object is _VF and hasattr(_VF, name):
                return domain.state.wrap(getattr(self.object, name), AttributeSource(source, name))
            if "__getattr__" in names or any(hasattr(type(self.object), finder) for finder in (name, "__getattr__")):
                unsupported(f"attribute {name}", self)
            self._raise_missing(domain, source, name)
        return domain.state.wrap(names[name], AttributeSource(source, name))

    def attribute_of_class(self, domain: SymbolicDomain, source: Source, name: str) -> Value:
        """`class_.name`."""
        class_ = self.object
        if type(class_).__getattribute__ is not type.__getattribute__:
            unsupported(f"attribute {name}", self)
        if name in ("__mro__", "__bases__", "__dict__", *_NAMES_OF_CLASSES) and class_.__flags__ & _MAY_CHANGE:
            return domain.state.wrap(getattr(class_, name), AttributeSource(source, name))
        if name in ("__mro__", "__bases__"):
            return SequenceValue(tuple, [domain.object(base) for base in getattr(class_, name)])
        if name == "__dict__":
            return domain.state.wrap(class_.__dict__, AttributeSource(source, name))
        if name in _NAMES_OF_CLASSES:
            return ConstantValue(getattr(class_, name))
        if domain.has_class_method(class_, name) or in_mro(type(class_), name) is _SUBCLASSES:
            return NativeMethodValue(self, name)
        if is_a(class_, EnumMeta) and name in class_.__dict__.get("_member_map_", ()):
            return domain.state.wrap(class_.__dict__["_member_map_"][name], AttributeSource(source, name))
        found, of_metaclass = in_mro(class_, name), in_mro(type(class_), name)
        if of_metaclass is not MISSING and (found is MISSING or is_data_descriptor(of_metaclass)):
            return self._of_metaclass(domain, of_metaclass, name)
        if is_a(found, staticmethod):
            return domain.state.wrap(found.__func__, AttributeSource(source, name))
        if is_a(found, classmethod):
            function = domain.state.wrap(found.__func__, AttributeSource(AttributeSource(source, name), "__func__"))
            return MethodValue(function, self)
        if is_a(found, GetSetDescriptorType) and issubclass(class_, torch.Tensor):
            return domain.state.wrap(found, AttributeSource(source, name))
        if found is MISSING and not hasattr(type(class_), "__getattr__"):
            self._raise_missing(domain, source, name)
        is_given = is_a(found, _GIVEN_AS_THEY_ARE) or type(found) in _GIVEN_OF_CLASSES
        if found is MISSING or (hasattr(type(found), "__get__") and not is_given):
            unsupported(f"attribute {name}", self)
        return domain.state.wrap(found, AttributeSource(source, name))

    def _of_metaclass(self, domain: SymbolicDomain, found: Any, name: str) -> Any:
        """An attribute that the metaclass provides: a property or a method written in Python, or an object."""
        way = AttributeSource(class_source(self.object), name)
        if is_a(found, property) and is_a(found.fget, FunctionType):
            return domain.enter_function(domain.state.wrap(found.fget, AttributeSource(way, "fget")), [self], {})
        if is_a(found, FunctionType):
            return MethodValue(domain.state.wrap(found, way), self)
        if not hasattr(type(found), "__get__"):
            return domain.state.wrap(found, way)
        if is_a(found, MemberDescriptorType) and found.__objclass__ is type:  # a number that all classes have
            way = KeptSource(self.object, self.object.__qualname__) if self.source is None else self.source
            return domain.state.wrap(getattr(self.object, name), AttributeSource(way, name))
        unsupported(f"attribute {name} of its metaclass", self)

    def _raise_missing(self, domain: SymbolicDomain, source: Source, name: str) -> NoReturn:
        """Raises AttributeError, with a guard. Only where no code of the user's could provide the attribute."""
        domain.state.guard(GuardKind.WITHOUT, source, name)
        raising(AttributeError)

    def _of_instance(self, domain: SymbolicDomain, object_: Any, source: Source, name: str) -> Any:
        class_ = type(object_)
        if not finds_plainly(class_):
            reader, getter = self.special(domain, "__getattribute__"), in_mro(class_, "__getattr__")
            if getter is MISSING or reader is None:
                return self.call_special(domain, "__getattribute__", [ConstantValue(name)])
            otherwise = self.special(domain, "__getattr__") or unsupported(f"attribute {name}", self)
            given = [reader.function, otherwise.function, self, ConstantValue(name)]
            return domain.enter_polyfill(polyfills.attribute_by_two, given)
        found = self._of_instance_plainly(domain, object_, source, name)
        if found is not MISSING:
            return found
        getter = in_mro(class_, "__getattr__")
        if getter is _MODULE_GETATTR:
            return self.of_module(domain, name)
        if getter is MISSING:
            self._raise_missing(domain, source, name)
        self._guard_missing(domain, object_, source, name)
        return self.call_special(domain, "__getattr__", [ConstantValue(name)])

    def plain_attribute(self, domain: SymbolicDomain, name: str) -> Any:
        """`object.__getattribute__(value, name)`."""
        assert self.source is not None
        found = self._of_instance_plainly(domain, self.object, self.source, name)
        if found is not MISSING:
            return found
        self._guard_missing(domain, self.object, self.source, name)
        raising(AttributeError)

    def _guard_missing(self, domain: SymbolicDomain, object_: Any, source: Source, name: str) -> None:
        """Guards that neither the object nor its class has the attribute, without running code of the user's."""
        if has_own_attributes(object_):
            self._attributes(domain)
            domain.state.guard(GuardKind.LACKS, _way_to(object_, source, "__dict__"), name)
        if not hasattr(type(object_), name):  # the metaclass may have it, of which instances know nothing
            domain.state.guard(GuardKind.WITHOUT, class_source(object_), name)

    def _attributes(self, domain: SymbolicDomain) -> dict[str, Any]:
        """The `__dict__` of the object. Breaks the graph if the segment has changed it through another name for it."""
        own = own_attributes(self.object)
        effects = domain.state.effects
        if domain.state.changed_dict(own) is not None or effects.wrote_attributes_in(own, by_others_than=self):
            unsupported("an attribute after a change of its dict", self)
        return own

    def _of_instance_plainly(self, domain: SymbolicDomain, object_: Any, source: Source, name: str) -> Any:
        """The attribute; MISSING if there is none."""
        class_ = type(object_)
        written = domain.state.effects.attribute(self, name)
        if written is not None and written is not DELETED:
            return written
        if name in _MODULE_TABLES and self._may_have_registered(domain, name):
            unsupported(f"attribute {name} after an assignment", self)
        if name == "__class__":
            return ObjectValue(class_, class_source(object_))
        on_class = in_mro(class_, name)
        if is_a(object_, Enum) and name in ("name", "value") and on_class is Enum.__dict__[name]:
            return domain.state.wrap(object_.__dict__[f"_{name}_"], AttributeSource(source, f"_{name}_"))
        if on_class is not MISSING and is_data_descriptor(on_class):
            return self._through_descriptor(domain, on_class, source, name)
        own = self._attributes(domain)
        if name in own and written is None:
            return domain.state.wrap(own[name], _way_to(object_, source, name))
        if on_class is not MISSING:
            # While the object's own attribute hides it, it is read from the class.
            way = source if written is None else class_source(object_)
            if written is not None and hasattr(type(on_class), "__get__"):
                unsupported(f"attribute {name} after it was deleted", self)
            return self._through_class(domain, on_class, way, name)
        if written is not None:
            if in_mro(class_, "__getattr__") is not MISSING:
                unsupported(f"attribute {name} after it was deleted", self)
            raising(AttributeError)
        return MISSING

    def _through_descriptor(self, domain: SymbolicDomain, found: Any, source: Source, name: str) -> Any:
        if is_read_property(found):
            way = AttributeSource(AttributeSource(class_source(self.object), name), "fget")
            return domain.call(None, domain.state.wrap(found.fget, way), [self], {})  # pyright: ignore[reportArgumentType]
        if is_a(found, FIELD) and self._is_sequence:  # of a named tuple with special methods of its own
            return self.inside_of(domain).elements(domain)[found.__reduce__()[1][0]]
        if is_a(found, (MemberDescriptorType, GetSetDescriptorType)):
            try:
                content = object.__getattribute__(self.object, name)
            except AttributeError:
                return MISSING
            return domain.state.wrap(content, _way_to(self.object, source, name))
        return self._call_descriptor(domain, found, "__get__", name, [ObjectValue(type(self.object))])

    def _call_descriptor(self, domain: SymbolicDomain, found: Any, method_name: str, name: str, args: list[Any]) -> Any:
        """`type(found).__get__(found, self, class_)` or `__set__`, of a descriptor written in Python."""
        function, class_ = in_mro(type(found), method_name), type(self.object)
        if not is_a(function, FunctionType) or self.source is None or is_a(self.object, torch.Tensor):
            unsupported(f"descriptor {name}", self)
        owner = next(base for base in class_.__mro__ if name in base.__dict__)
        # reading it from the class by name might call `__get__`
        way = OwnAttributeSource(KeptSource(owner, owner.__qualname__), name)
        method = domain.state.wrap(function, AttributeSource(class_source(found), method_name))
        return domain.enter_function(method, [domain.state.wrap(found, way), self, *args], {})

    def _through_class(self, domain: SymbolicDomain, found: Any, source: Source, name: str) -> Any:
        way = _way_to(self.object, source, name)
        if is_a(found, FunctionType):
            return MethodValue(domain.state.wrap(found, AttributeSource(way, "__func__")), self)
        if is_a(found, staticmethod):
            return domain.state.wrap(found.__func__, way)
        if is_a(found, classmethod):
            function = domain.state.wrap(found.__func__, AttributeSource(way, "__func__"))
            return MethodValue(function, ObjectValue(type(self.object), class_source(self.object)))
        if is_native_method(found, type(self.object)):
            return NativeMethodValue(self, name)
        if hasattr(type(found), "__get__") and self.source is not None and has_own_attributes(self.object):
            domain.state.guard(GuardKind.LACKS, PlainAttributeSource(self.source, "__dict__"), name)
        if is_a(found, functools.cached_property) and type(self.object).__setattr__ is object.__setattr__:
            function = domain.state.wrap(
                found.func, AttributeSource(AttributeSource(class_source(self.object), name), "func")
            )
            return domain.enter_polyfill(polyfills.computed_once, [self, function, ConstantValue(name)])
        if hasattr(type(found), "__get__"):
            return self._call_descriptor(domain, found, "__get__", name, [ObjectValue(type(self.object))])
        return domain.state.wrap(found, way)

    def of_module(self, domain: SymbolicDomain, name: str) -> Value:
        """`nn.Module.__getattr__`: the attribute in the first of the tables (parameters, buffers, modules) that has it."""
        module, source = self.object, self.source
        if source is None or any(domain.state.effects.attribute(self, table) is not None for table in _MODULE_TABLES):
            unsupported(f"attribute {name}", self)
        for table in _MODULE_TABLES:
            names = module.__dict__.get(table)
            changed = domain.state.changed_dict(names)
            if changed is not None:
                if name in changed.items:
                    return changed.items[name][1]
            elif names is not None and name in names:
                domain.state.guard(GuardKind.LACKS, AttributeSource(source, "__dict__"), name)
                return domain.state.wrap(names[name], ItemSource(OwnAttributeSource(source, table), name))
        if in_mro(type(module), "__getattr__") is not _MODULE_GETATTR:
            unsupported(f"attribute {name}", self)
        self._raise_missing(domain, source, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        if self.is_class:
            return self._class_has(domain, name)
        if self.source is None:
            unsupported("hasattr()", self)
        written = domain.state.effects.attribute(self, name)
        if (written is not None and written is not DELETED) or self._is_written_global(domain, name):
            return True
        object_ = self.object
        if type(object_).__getattribute__ not in _PLAIN_GETTERS:
            return None
        if written is DELETED:
            if in_mro(type(object_), "__getattr__") is not MISSING:
                unsupported("hasattr()", self)
            return in_mro(type(object_), name) is not MISSING
        self._attributes(domain)
        found = inspect.getattr_static(object_, name, MISSING)
        getter = in_mro(type(object_), "__getattr__")
        if found is MISSING and not any(getter is known for known in (MISSING, _MODULE_GETATTR)):
            return None
        if is_a(found, (MemberDescriptorType, GetSetDescriptorType)) and hasattr(object_, name) is False:
            domain.state.guard(GuardKind.WITHOUT, self.source, name)
            return False  # an empty slot
        if found is not MISSING:
            return None if is_a(found, property) or is_a(in_mro(type(found), "__get__"), FunctionType) else True
        if is_a(object_, torch.nn.Module):
            tables = [object_.__dict__.get(table, {}) for table in _MODULE_TABLES]
            changed = [domain.state.changed_dict(table) for table in tables]
            if any(name in (now.items if now else table) for now, table in zip(changed, tables, strict=True)):
                return True
            if any(name in table for table in tables):
                return False  # deleted in the segment
        domain.state.guard(GuardKind.WITHOUT, self.source, name)
        return False

    def guard_attribute(self, domain: SymbolicDomain, name: str) -> None:
        is_written = domain.state.effects.attribute(self, name) is not None or self._is_written_global(domain, name)
        if self.source is not None and not is_written:
            domain.state.guard(GuardKind.HAS, self.source, name)

    def _is_written_global(self, domain: SymbolicDomain, name: str) -> bool:
        """Whether it is a module of which the segment has set this attribute."""
        return is_a(self.object, ModuleType) and domain.state.effects.global_(vars(self.object), name) is not None

    def _class_has(self, domain: SymbolicDomain, name: str) -> bool:
        class_ = self.object
        if is_a(class_, EnumMeta) and name in class_.__dict__.get("_member_map_", ()):
            return True
        of_metaclass = getattr(type(class_), "__getattr__", None)
        if type(class_).__getattribute__ is not type.__getattribute__ or (
            of_metaclass is not None and of_metaclass is not getattr(EnumMeta, "__getattr__", None)
        ):
            unsupported("hasattr()", self)
        if in_mro(class_, name) is not MISSING or in_mro(type(class_), name) is not MISSING:
            return hasattr(class_, name) if is_a(in_mro(type(class_), name), GetSetDescriptorType) else True
        source = KeptSource(class_, class_.__qualname__) if self.source is None else self.source
        domain.state.guard(GuardKind.WITHOUT, source, name)
        return False

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        if is_a(self.object, ModuleType):
            return self._set_in_namespace(domain, name, attribute)
        if is_a(self.object, FunctionType) and self.source is not None and not hasattr(FunctionType, name):
            return domain.state.effects.set_attribute(self, name, attribute)
        if self.source is not None and type(type(self.object).__setattr__) is FunctionType and self.is_object:
            if not is_a(self.object, (torch.nn.Module, torch.Tensor)):
                return self.call_special(domain, "__setattr__", [ConstantValue(name), attribute])
        if not self._may_write(domain, name):
            super().store_attr(domain, name, attribute)
        return self.set_plainly(domain, name, attribute)

    def _set_in_namespace(self, domain: SymbolicDomain, name: str, attribute: Any) -> None:
        """`module.name = attribute`: the global variable of the module's functions."""
        module = self.object
        found = in_mro(type(module), name)
        is_plain = type(module).__setattr__ is ModuleType.__setattr__ and type(vars(module)) is dict
        if not is_plain or (found is not MISSING and writes(found)) or name in ("__dict__", "__class__"):
            super().store_attr(domain, name, attribute)
        if domain.state.effects.global_(vars(module), name) is None:
            before_the_end(vars(module).get(name))
        domain.state.effects.set_global(vars(module), name, attribute)

    def set_plainly(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        """`object.__setattr__(value, name, attribute)`, or for a module that of modules."""
        # An attribute that is set anew moves to the end of the object's dict.
        if not self._may_write_plainly(domain, name) or domain.state.effects.attribute(self, name) is DELETED:
            super().store_attr(domain, name, attribute)
        found = in_mro(type(self.object), name)
        if is_a(found, property) and isinstance(found.fset, FunctionType) and self.source is not None:
            way = AttributeSource(AttributeSource(class_source(self.object), name), "fset")
            return domain.enter_function(domain.state.wrap(found.fset, way), [self, attribute], {})
        if found is not MISSING and writes(found):
            return self._call_descriptor(domain, found, "__set__", name, [attribute])
        if is_a(self.object, torch.nn.Module) and not self._may_write_of_module(domain, self.object, name, attribute):
            unsupported(f"an assignment to attribute {name} of a module", self)
        if domain.state.effects.attribute(self, name) is None:
            before_the_end(own_attributes(self.object).get(name))
        domain.state.effects.set_attribute(self, name, attribute)

    def delete_attr(self, domain: SymbolicDomain, name: str) -> Any:
        """`del value.name`, of an attribute in the object's own dict."""
        class_, written = type(self.object), domain.state.effects.attribute(self, name)
        is_plain = class_.__delattr__ is object.__delattr__ and self._may_write(domain, name)
        on_class = in_mro(class_, name)
        if not is_plain or written is DELETED or (on_class is not MISSING and writes(on_class)):
            super().delete_attr(domain, name)
        assert self.source is not None
        own, way = own_attributes(self.object), PlainAttributeSource(self.source, "__dict__")
        if name not in own:
            if written is None:
                super().delete_attr(domain, name)
            domain.state.guard(GuardKind.LACKS, way, name)
            domain.state.effects.forget_attribute(self, name)
            return
        if written is None:
            before_the_end(own[name])
        domain.state.guard(GuardKind.TYPE, ItemSource(way, name), type(own[name]))  # that there is one
        domain.state.effects.set_attribute(self, name, DELETED)

    def _may_write(self, domain: SymbolicDomain, name: str) -> bool:
        """Whether assigning to the attribute is plain `object.__setattr__` or that of a module, on an object of the program."""
        setter = type(self.object).__setattr__
        return any(setter is known for known in _PLAIN_SETTERS) and self._may_write_plainly(domain, name)

    def _may_write_plainly(self, domain: SymbolicDomain, name: str) -> bool:
        """Whether `object.__setattr__` can assign to the attribute, past a `__setattr__` of the class."""
        object_ = self.object
        if self.source is None or is_a(object_, (type, ModuleType, FunctionType, torch.Tensor)):
            return False
        if domain.state.reaches_otherwise(self) or not has_own_attributes(object_):
            return False
        return name not in ("__dict__", "__class__")

    def _may_write_of_module(self, domain: SymbolicDomain, module: torch.nn.Module, name: str, attribute: Any) -> bool:
        """Whether a module's attribute may be assigned: a plain value, or a tensor that is no parameter. Registering breaks the
        graph.
        """
        new = domain.state.realize(attribute)
        if any(name in module.__dict__.get(table, ()) for table in ("_parameters", "_modules")):
            return False
        if isinstance(new, ObjectValue):
            return not is_a(new.object, (torch.nn.Module, torch.Tensor))
        return not isinstance(new, TensorValue) or not isinstance(new.fake, (torch.nn.Parameter, torch.nn.Buffer))

    def _may_have_registered(self, domain: SymbolicDomain, table: str) -> bool:
        """Whether an attribute that the segment has written may be in this table of a module. A number, a container or a tensor
        is in none, but for a tensor under the name of a buffer.
        """
        buffers = own_attributes(self.object).get("_buffers", ())
        for name, written in domain.state.effects.attributes_of(self).items():
            is_plain = isinstance(domain.state.realize(written), _NEVER_REGISTERED)
            if not is_plain or (table == "_buffers" and name in buffers):
                return True
        return False

    # ------------------------------------------------------------------------------------------------------ calls

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.call_object(frame, self, args, kwargs)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if domain.has_class_method(self.object, name):
            return domain.call_class_method(self.object, name, frame, args, kwargs)
        if name == "__subclasses__" and self.is_class and not args and not kwargs:
            return self._subclasses(domain)
        if name == "__get__" and is_a(self.object, FunctionType):
            return bound_by_get(domain, self, args, kwargs)
        return super().call_method(domain, frame, name, args, kwargs)

    def _subclasses(self, domain: SymbolicDomain) -> Value:
        """`class_.__subclasses__()`, with a guard on the classes: a new list of them."""
        way = KeptSource(self.object, self.object.__qualname__) if self.source is None else self.source
        found = domain.state.wrap(type.__subclasses__(self.object), FactsSource(way, type.__subclasses__))
        return SequenceValue(list, domain.elements(found))

    def hooks_of(self, domain: SymbolicDomain) -> bool:
        """Whether calling the module runs hooks besides its `forward`; guarded if it does not."""
        module, source = self.object, self.source
        assert source is not None
        tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        common = torch.nn.modules.module
        global_tables = [f"_global{name}" for name in tables]
        if any(module.__dict__.get(name) for name in tables) or any(getattr(common, name) for name in global_tables):
            return True
        if "_compiled_call_impl" in module.__dict__ or "forward" in module.__dict__:
            return True
        for name in tables:
            domain.state.guard(GuardKind.EMPTY, OwnAttributeSource(source, name))
        for name in global_tables:
            domain.state.guard(GuardKind.EMPTY, AttributeSource(KeptSource(common, "torch.nn.modules.module"), name))
        for name in ("_compiled_call_impl", "forward"):
            domain.state.guard(GuardKind.LACKS, AttributeSource(source, "__dict__"), name)
        domain.state.guard(GuardKind.ID, AttributeSource(class_source(module), "__call__"), type(module).__call__)
        return False

    # ------------------------------------------------------------------------------------------------ what is in it

    def length(self, domain: SymbolicDomain) -> Any:
        return ConstantValue(len(self.object)) if is_enumeration(self.object) else super().length(domain)

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        if is_a(self.object, EnumMeta):
            return ConstantValue(self._has_member(item) is not inverted)
        method = in_mro(type(self.object), "__contains__") if self.is_class else MISSING
        if is_a(method, FunctionType):
            function = domain.state.wrap(method, AttributeSource(class_source(self.object), "__contains__"))
            return domain.enter_polyfill(polyfills.contained_by, [function, self, item, ConstantValue(not inverted)])
        return super().contains(domain, item, inverted)

    def _has_member(self, item: Value) -> bool:
        if not isinstance(item, ObjectValue) or type(self.object).__contains__ is not EnumMeta.__contains__:
            unsupported("`in`", item)
        return any(item.object is member for member in self.object._member_map_.values())

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        if self.is_class:
            return self._item_of_class(domain, domain.known_key(key))
        if defining_package(type(self.object)) == "typing":  # `typing.List[...]`
            return _typing_of(operator.getitem, self.object, _annotation(domain, key))
        return super().get_item(domain, key)

    def _item_of_class(self, domain: SymbolicDomain, key: Value) -> Any:
        """`class_[key]`, by `__class_getitem__`; for an enumeration, the member of that name."""
        class_: Any = self.object
        if is_a(class_, EnumMeta) and type(class_).__getitem__ is EnumMeta.__getitem__:
            member = class_._member_map_.get(domain.constant_of(key, "a name"))
            if member is None:
                raise UserRaise(KeyError, [key])
            return ObjectValue(member)
        if any(class_ is known for known in _GENERIC) or defining_package(class_) in sys.stdlib_module_names:
            return _typing_of(operator.getitem, class_, _annotation(domain, key))
        found = in_mro(class_, "__class_getitem__")
        if not is_a(found, classmethod) and not is_a(found, FunctionType):
            unsupported("an item", self)
        function = found.__func__ if is_a(found, classmethod) else found
        return domain.enter_function(ObjectValue(function), [self, key], {})

    @property
    def _holds_modules(self) -> bool:
        return getattr(type(self.object), "__iter__", None) in _OF_MODULES

    def runs_code(self, domain: SymbolicDomain) -> bool:
        return not self._holds_modules and super().runs_code(domain)

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        if is_enumeration(self.object):
            return [ObjectValue(member) for member in self.object]
        if self._holds_modules and self.source is not None:
            return self._modules(domain)
        return super().elements(domain)

    def _modules(self, domain: SymbolicDomain) -> list[Value]:
        """The modules of a ModuleList or Sequential, or the names in a ModuleDict."""
        is_dict = is_a(self.object, torch.nn.ModuleDict)
        found = domain.state.realize(self.load_attr(domain, "_modules"))
        if not isinstance(found, DictValue):
            unsupported("iterating", self)
        return [key if is_dict else module for key, module in found.items.values()]

    def iterate(self, domain: SymbolicDomain) -> Any:
        if not is_enumeration(self.object) and not self._holds_modules:
            return super().iterate(domain)
        items = self.elements(domain)
        return domain.iterator(SequenceValue(list, items), items)

    def enter_context(self, domain: SymbolicDomain) -> tuple[Any, Any]:
        region = region_of_object(domain, self)
        return super().enter_context(domain) if region is None else (region.enter_context(domain)[0], self)

    # --------------------------------------------------------------------------------------------- what is inside

    @property
    def has_inside(self) -> bool:
        if self.source is not None and is_a(self.object, (list, tuple)):
            return sequence_base(type(self.object)) is not None
        return is_a(self.object, dict) and dict_base(type(self.object)) is not None

    def inside_of(self, domain: SymbolicDomain) -> DictValue | SequenceValue:
        return domain.state.items_of(self)

    def attribute_written(self, emitter: Any, attribute: str, new: str) -> str:
        """Overrides Value: a descriptor or a `__setattr__` of the class has been interpreted, and does not run again."""
        found, setter = in_mro(type(self.object), attribute), type(self.object).__setattr__
        if found is not MISSING and writes(found):
            getter = emitter.constant(object.__getattribute__)
            return f"{getter}({emitter.expression(self)}, '__dict__')[{attribute!r}] = {new}"
        if not any(setter is known for known in _PLAIN_SETTERS):
            return f"{emitter.constant(object.__setattr__)}({emitter.expression(self)}, {attribute!r}, {new})"
        return super().attribute_written(emitter, attribute, new)

    def rebuilt(self, emitter: Any) -> str:
        return emitter.constant(self.object)

    def as_fake(self, state: Any, what: str) -> Any:
        if self._is_sequence:
            return state.items_of(self).as_fake(state, what)
        return self.object if self.is_class else self.fake_of_fields(state, what)

    def as_argument(self, state: Any) -> Any:
        if self._is_sequence:
            return state.items_of(self).as_argument(state)
        return self.object if frozen_fields(type(self.object)) is None else self.node_of_fields(state)

    def fields_of(self, state: Any) -> dict[str, Value] | None:
        names, own = frozen_fields(type(self.object)), own_attributes(self.object)
        if names is None or self.source is None or own.keys() != {*names} or state.effects.has_attributes(self):
            return None
        return {name: state.wrap(own[name], AttributeSource(self.source, name)) for name in names}

    @property
    def _is_sequence(self) -> bool:
        return is_a(self.object, (list, tuple)) and self.has_inside


def _annotation(domain: SymbolicDomain, value: Any) -> Any:
    """The argument in the brackets of `list[...]`: classes, and tuples and lists of them."""
    value = domain.state.realize(value)
    match value:
        case SequenceValue() if value.class_ in (tuple, list):
            return value.class_([_annotation(domain, item) for item in value.items])
        case ObjectValue():
            return value.object
        case ConstantValue() if value.value is None or value.value is ...:
            return value.value
        case _:
            unsupported("an item of a class", value)


def _way_to(object_: Any, source: Source, name: str) -> Source:
    """The source of an attribute. Reading it runs no code of the user's."""
    kind = AttributeSource if finds_plainly(type(object_)) else PlainAttributeSource
    return kind(source, name)


def _typing_of(function: Any, *args: Any) -> ObjectValue:
    """`list[int]`, `int | str`. Breaks the graph where that raises."""
    try:
        return ObjectValue(function(*args))
    except Exception as error:
        raise GraphBreak("op_raises_on_fake", what=function.__name__, error=type(error).__name__) from error
