"""Objects made in the segment, of classes written in Python.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedObjectVariable; nn_module.py UnspecializedNNModuleVariable
Differs: `torch.nn.Module.__init__`, `__setattr__` and `__getattr__` are built in; other methods of a module are interpreted.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, KeptSource, OwnAttributeSource, Source, class_source
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import MethodValue, NativeMethodValue
from refimpl.capture.values.classes import (
    MISSING,
    in_mro,
    is_a,
    is_data_descriptor,
    is_read_property,
    own_attributes,
    writes,
)
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.hashing import Fields, Member, frozen_fields, hashed_by_fields, is_compared_by_identity
from refimpl.capture.values.mapping import DictValue, FrozenDictValue
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.program_object import InsideValue, ProgramObject, is_native_method, sequence_base
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import DELETED, Value, before_the_end, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_PLAIN_SETTERS = (object.__setattr__, BaseException.__setattr__)
_TABLES = ("_parameters", "_buffers", "_modules")
_MODULE = torch.nn.Module
_MODULE_INIT = _MODULE.__init__


class InstanceValue(ProgramObject):
    """An object made in the segment. `attributes`: the contents of its `__dict__` and slots.

    `inside`: the items, if its class derives from dict, list or tuple.
    """

    __slots__ = ("attributes", "class_", "inside")

    def __init__(self, class_: type, inside: DictValue | None = None) -> None:
        super().__init__()
        self.class_ = class_
        self.attributes: dict[str, Any] = {}
        base = sequence_base(class_)
        self.inside: DictValue | SequenceValue | None = inside if base is None else InsideValue(base, [], self)

    @property
    def kind(self) -> str:
        return self.class_.__name__

    @property
    def is_object(self) -> bool:
        return True

    @property
    def equality_is_identity(self) -> bool:
        return self.class_.__eq__ is object.__eq__

    def class_of(self) -> type:
        return self.class_

    def way_to_class(self) -> Source:
        return KeptSource(self.class_, self.class_.__qualname__)

    def hash_key(self, domain: SymbolicDomain) -> Any:
        if is_compared_by_identity(self.class_):
            return Member(self)
        names = hashed_by_fields(self.class_)
        if names is None or not self.attributes.keys() >= {*names}:
            unsupported("a key", self)
        return Fields(self.class_, tuple(domain.hash_key(self.attributes[name]) for name in names), self)

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        method = self.special(domain, "__call__")
        if method is None:
            unsupported("a call", self)
        return domain.enter_function(method.function, [self, *args], kwargs)

    def next(self, domain: SymbolicDomain) -> Any:
        return self.call_special(domain, "__next__", [])

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        """Looks an attribute up as `object.__getattribute__` does."""
        class_ = self.class_
        if name == "__class__":
            return domain.object(class_)
        if name == "__dict__":
            return AttributesValue(self) if has_instance_dict(class_) else raising(AttributeError)
        found = in_mro(class_, name)
        if name == "__weakref__" and isinstance(found, GetSetDescriptorType):
            return ConstantValue(None)  # a segment makes no weak references
        way = AttributeSource(self.way_to_class(), name)
        if is_read_property(found):
            getter = domain.state.wrap(found.fget, AttributeSource(way, "fget"))
            return domain.call(None, getter, [self], {})  # pyright: ignore[reportArgumentType]
        if found is not MISSING and is_data_descriptor(found) and not isinstance(found, MemberDescriptorType):
            return self._through_descriptor(domain, "__get__", found, name, [domain.object(class_)])
        if name in self.attributes:
            return self.attributes[name]
        if self.inside is not None and is_native_method(found, class_):
            return NativeMethodValue(self, name)
        if found is MISSING or isinstance(found, MemberDescriptorType):
            in_tables = self._in_tables(name) if issubclass(class_, _MODULE) else None
            return self._missing(domain, name) if in_tables is None else in_tables
        if isinstance(found, functools.cached_property) and class_.__setattr__ is object.__setattr__:
            function = domain.state.wrap(found.func, AttributeSource(way, "func"))
            return domain.enter_polyfill(polyfills.computed_once, [self, function, ConstantValue(name)])
        return self._bound(domain, found, class_, way)

    def _missing(self, domain: SymbolicDomain, name: str) -> Any:
        """The result of `__getattr__`, or AttributeError."""
        if issubclass(self.class_, _MODULE) and is_plain_module(self.class_):
            raising(AttributeError)
        if self.special(domain, "__getattr__") is not None:
            return self.call_special(domain, "__getattr__", [ConstantValue(name)])
        if in_mro(self.class_, "__getattr__") is not MISSING:
            unsupported(f"attribute {name}", self)
        raising(AttributeError)

    def _bound(self, domain: SymbolicDomain, found: Any, class_: type, way: Source) -> Value:
        """Binds a class attribute to the instance. `way`: the source of the class attribute."""
        if isinstance(found, FunctionType):
            return MethodValue(domain.state.wrap(found, way), self)
        if isinstance(found, staticmethod):
            return domain.state.wrap(found.__func__, way)
        if isinstance(found, classmethod):
            return MethodValue(
                domain.state.wrap(found.__func__, AttributeSource(way, "__func__")), domain.object(class_)
            )
        if hasattr(type(found), "__get__"):
            unsupported("a descriptor", self)
        return domain.state.wrap(found, way)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool | None:
        if name in self.attributes:
            return True
        found = in_mro(self.class_, name)
        if issubclass(self.class_, _MODULE):
            return found is not MISSING or self._in_tables(name) is not None
        if found is MISSING and self.is_object:
            if in_mro(self.class_, "__getattr__") is not MISSING:
                return None
            if not hasattr(self.class_, name):  # the metaclass may have it
                domain.state.guard(GuardKind.WITHOUT, self.way_to_class(), name)
            return False
        return True if isinstance(found, FunctionType) else None

    def guard_attribute(self, domain: SymbolicDomain, name: str) -> None:
        if name not in self.attributes and in_mro(self.class_, name) is not MISSING:
            domain.state.guard(GuardKind.HAS, self.way_to_class(), name)

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        if is_plain_module(self.class_):
            return self._set_in_module(domain, name, attribute)
        if self.class_.__setattr__ not in _PLAIN_SETTERS:
            return self.call_special(domain, "__setattr__", [ConstantValue(name), attribute])
        return self.set_plainly(domain, name, attribute)

    def set_plainly(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        """`object.__setattr__(value, name, attribute)`."""
        class_ = self.class_
        found = in_mro(class_, name)
        if isinstance(found, property) and isinstance(found.fset, FunctionType):
            way = AttributeSource(AttributeSource(KeptSource(class_, class_.__qualname__), name), "fset")
            return domain.enter_function(domain.state.wrap(found.fset, way), [self, attribute], {})
        if name in ("__dict__", "__class__"):
            unsupported(f"an assignment to attribute {name}", self)
        if type(found) is property and found.fset is None:
            raising(AttributeError, without_setter(class_, name))
        if found is not MISSING and writes(found) and not isinstance(found, MemberDescriptorType):
            return self._through_descriptor(domain, "__set__", found, name, [attribute])
        if not isinstance(found, MemberDescriptorType) and not has_instance_dict(class_):
            raising(AttributeError)
        self.attributes[name] = attribute

    def _through_descriptor(
        self, domain: SymbolicDomain, method_name: str, found: Any, name: str, args: list[Any]
    ) -> Any:
        """`type(found).__get__(found, self, ...)` or `__set__`, of a descriptor written in Python."""
        function, class_ = in_mro(type(found), method_name), self.class_
        if not isinstance(function, FunctionType):
            unsupported(f"descriptor {name}", self)
        owner = next(base for base in class_.__mro__ if name in base.__dict__)
        way = OwnAttributeSource(
            KeptSource(owner, owner.__qualname__), name
        )  # reading it from the class by name might call `__get__`
        method = domain.state.wrap(function, AttributeSource(class_source(found), method_name))
        return domain.enter_function(method, [domain.state.wrap(found, way), self, *args], {})

    def delete_attr(self, domain: SymbolicDomain, name: str) -> None:
        found = in_mro(self.class_, name)
        is_received = found is not MISSING and writes(found) and not isinstance(found, MemberDescriptorType)
        if self.class_.__delattr__ is not object.__delattr__ or name not in self.attributes or is_received:
            unsupported(f"deleting attribute {name}", self)
        del self.attributes[name]

    # --------------------------------------------------------------------------------------------- what is inside

    @property
    def has_inside(self) -> bool:
        return self.inside is not None

    def inside_of(self, domain: SymbolicDomain) -> DictValue | SequenceValue:
        assert self.inside is not None
        return self.inside

    # ----------------------------------------------------------------------------------------------------- modules

    def begin_module(self, domain: SymbolicDomain) -> None:
        """`torch.nn.Module.__init__`, which takes nothing."""
        bare = _MODULE.__new__(_MODULE)
        _MODULE_INIT(bare)  # the original `__init__`, even if the program has replaced it
        for name, content in vars(bare).items():
            if type(content) in (dict, OrderedDict):
                self.attributes[name] = DictValue({}, None, type(content))
            elif type(content) is set:
                self.attributes[name] = domain.build("set", [])
            elif content is None or type(content) is bool:
                self.attributes[name] = ConstantValue(content)
            else:
                unsupported(f"attribute {name}", self)

    def _set_in_module(self, domain: SymbolicDomain, name: str, attribute: Value) -> None:
        """`torch.nn.Module.__setattr__`, which puts parameters, buffers and modules into tables."""
        new = domain.state.realize(attribute)
        parameters, buffers, modules = (self._table(table) for table in _TABLES)
        key = domain.hash_key(ConstantValue(name))
        is_parameter = isinstance(new, TensorValue) and isinstance(new.fake, torch.nn.Parameter)
        if is_parameter and new.source is None:  # a parameter made in the segment
            unsupported(f"an assignment to attribute {name} of a module", self)
        if in_mro(self.class_, name) is not MISSING and writes(in_mro(self.class_, name)):
            unsupported(f"an assignment to attribute {name} of a module", self)
        is_module = (isinstance(new, ObjectValue) and is_a(new.object, _MODULE)) or (
            isinstance(new, InstanceValue) and issubclass(new.class_, _MODULE)
        )
        is_buffer = key in buffers.items and (isinstance(new, TensorValue) or domain.is_none(new))
        if not (is_parameter or is_module or is_buffer or key in modules.items or key in parameters.items):
            self.attributes[name] = attribute
            return
        table = modules if is_module or key in modules.items else buffers if is_buffer else parameters
        table = parameters if is_parameter else table
        if not (is_parameter or is_module or is_buffer or domain.is_none(new)):
            raising(TypeError)
        self.attributes.pop(name, None)
        for other in (parameters, buffers, modules):
            if other is not table:
                other.items.pop(key, None)
        table.items[key] = (ConstantValue(name), new)

    def _in_tables(self, name: str) -> Value | None:
        """`torch.nn.Module.__getattr__`; None where it finds nothing."""
        for table in _TABLES:
            found = self.attributes.get(table)
            if isinstance(found, DictValue) and name in found.items:
                return found.items[name][1]
        return None

    def _table(self, name: str) -> DictValue:
        found = self.attributes.get(name)
        if not isinstance(found, DictValue):
            raising(AttributeError)  # `Module.__init__` has not run
        return found

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        if self.class_ is polyfills.FunctionContext:
            return super().rebuilt(emitter)
        class_, inside = emitter.constant(self.class_), self.inside
        if isinstance(inside, SequenceValue) and inside.class_ is tuple:
            items = "".join(f"{emitter.expression(item)}, " for item in inside.items)
            name = emitter.name_of(self) or emitter.named(self, f"tuple.__new__({class_}, ({items}))")
            self._rebuild_attributes(emitter, name)
            return name
        if isinstance(inside, SequenceValue):
            name = emitter.named(self, f"list.__new__({class_})")
            emitter.line(f"list.extend({name}, [{emitter.listed(inside.items)}])")
            self._rebuild_attributes(emitter, name)
            return name
        new = object.__new__ if inside is None else dict.__new__
        name = emitter.named(self, f"{emitter.constant(new)}({class_})")
        if isinstance(inside, DictValue):
            setter = emitter.constant(inside.class_.__setitem__)
            for key, item in inside.items.values():
                emitter.line(f"{setter}({name}, {emitter.expression(key)}, {emitter.expression(item)})")
        self._rebuild_attributes(emitter, name)
        return name

    def _rebuild_attributes(self, emitter: Any, name: str) -> None:
        for attribute, content in self.attributes.items():
            found, new = in_mro(self.class_, attribute), emitter.expression(content)
            if found is not MISSING and writes(found) and not isinstance(found, MemberDescriptorType):
                getter = emitter.constant(object.__getattribute__)  # the program has set it in the `__dict__`
                emitter.line(f"{getter}({name}, '__dict__')[{attribute!r}] = {new}")
                continue
            setter = emitter.constant(object.__setattr__)
            emitter.line(f"{setter}({name}, {attribute!r}, {new})")

    def as_fake(self, state: Any, what: str) -> Any:
        inside = self.inside
        return inside.as_fake(state, what) if isinstance(inside, SequenceValue) else self.fake_of_fields(state, what)

    def as_argument(self, state: Any) -> Any:
        inside = self.inside
        return inside.as_argument(state) if isinstance(inside, SequenceValue) else self.node_of_fields(state)

    def fields_of(self, state: Any) -> dict[str, Value] | None:
        names = frozen_fields(self.class_)
        is_whole = names is not None and self.attributes.keys() == {*names}
        return {name: self.attributes[name] for name in names} if names is not None and is_whole else None


class AttributesValue(FrozenDictValue):
    """The `__dict__` of an object made in the segment."""

    __slots__ = ("owner",)

    def __init__(self, owner: InstanceValue) -> None:
        Value.__init__(self)  # `items` are those of the object
        self.owner, self.class_, self.holder = owner, dict, None
        self.changed_at, self.removed = [], set()

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        """The object's attributes, by name."""
        return {name: (ConstantValue(name), value) for name, value in self.owner.attributes.items()}

    def put(self, domain: SymbolicDomain, key: Any, value: Value) -> None:
        """Sets the attribute, past all descriptors and `__setattr__`. Overrides FrozenDictValue, which refuses changes."""
        name = domain.state.realize(key)
        is_slot = isinstance(in_mro(self.owner.class_, getattr(name, "value", "")), MemberDescriptorType)
        if not isinstance(name, ConstantValue) or type(name.value) is not str or is_slot:
            unsupported("a change", self)
        self.owner.attributes[name.value] = value

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, f"{emitter.expression(self.owner)}.__dict__")


class OwnAttributesValue(FrozenDictValue):
    """The `__dict__` of an object of the program: `before`, as it was at the entry, with what the segment has written since.

    Items can be set; every other change breaks the graph.
    """

    __slots__ = ("before", "owner", "written")

    def __init__(
        self,
        before: dict[Any, tuple[Value, Value]],
        owner: ObjectValue,
        source: Source,
        written: Callable[[], Mapping[str, Any]],
    ) -> None:
        Value.__init__(self, source)  # `items` are made of the two others
        self.before, self.owner, self.written = before, owner, written
        self.class_, self.holder = dict, None
        self.changed_at, self.removed = [], set()

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        """The object's attributes, by name."""
        written = self.written()
        if not written:
            return self.before
        items = dict(self.before)
        for name, value in written.items():
            if value is DELETED:
                items.pop(name, None)
            elif not isinstance(in_mro(type(self.owner.object), name), MemberDescriptorType):  # a slot is elsewhere
                items[name] = (ConstantValue(name), value)
        return items

    def put(self, domain: SymbolicDomain, key: Any, value: Value) -> None:
        """Sets the attribute, past all descriptors and `__setattr__`. Overrides FrozenDictValue, which refuses changes."""
        name, object_ = domain.state.realize(key), self.owner.object
        if not isinstance(name, ConstantValue) or type(name.value) is not str:
            unsupported("a change", self)
        before = domain.state.effects.attribute(self.owner, name.value)
        if before is DELETED or isinstance(object_, (_MODULE, threading.local)):
            unsupported("a change", self)
        found = in_mro(type(object_), name.value)
        if found is not MISSING and is_data_descriptor(found):  # reading the attribute asks the class
            unsupported("a change", self)
        if before is None:
            before_the_end(own_attributes(object_).get(name.value))
        if name.value not in self.items:
            self.changed_at.append(domain.state.position())
        domain.state.effects.set_attribute(self.owner, name.value, value)


def is_plain_module(class_: type, plain_new: Any = object.__new__) -> bool:
    """Whether a class of modules has this constructor, and the attribute access of `torch.nn.Module`."""
    return (
        issubclass(class_, _MODULE)
        and class_.__new__ is plain_new
        and type(class_).__call__ is type.__call__
        and class_.__getattribute__ is object.__getattribute__
        and class_.__setattr__ is _MODULE.__setattr__
        and in_mro(class_, "__getattr__") is _MODULE.__dict__["__getattr__"]
        and not hasattr(class_, "__del__")
    )


def without_setter(class_: type, name: str) -> str:
    """What Python says of an assignment to a property without a setter."""
    if sys.version_info < (3, 11):
        return f"can't set attribute {name!r}"
    return f"property {name!r} of {class_.__qualname__!r} object has no setter"


def has_instance_dict(class_: type) -> bool:
    """Whether instances have a `__dict__`."""
    return class_.__dictoffset__ != 0
