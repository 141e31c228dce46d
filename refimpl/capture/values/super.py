"""`super()`.

Counterpart: torch/_dynamo/variables/misc.py SuperVariable
"""

from __future__ import annotations

import inspect
from types import FunctionType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import TensorBase
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import MethodValue, NativeMethodValue
from refimpl.capture.values.classes import is_a
from refimpl.capture.values.error import ErrorValue
from refimpl.capture.values.instance import InstanceValue
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.program_object import is_native_method
from refimpl.capture.values.subclass_tensor import SubclassTensorValue
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

# Attributes of `object` and `type` that are built in, whichever class of the mro they are read from.
_GIVEN_AS_THEY_ARE = (object.__setattr__, object.__getattribute__, type.__dict__["__call__"])


class SuperValue(Value):
    """`super(class_, receiver)`."""

    __slots__ = ("class_", "receiver")

    def __init__(self, class_: type, receiver: Value) -> None:
        super().__init__()
        self.class_ = class_
        self.receiver = receiver

    def load_attr(self, domain: SymbolicDomain, name: str) -> Value:
        receiver = domain.state.realize(self.receiver)
        is_of_class = _is_class(receiver) and self.class_ in receiver.object.__mro__
        mro = receiver.object.__mro__ if is_of_class else _mro_of(receiver)
        behind = mro[mro.index(self.class_) + 1 :]
        owner = next((base for base in behind if name in base.__dict__), None)
        if owner is not None:
            class_ = mro[0]
            domain.state.guard(GuardKind.ID, AttributeSource(KeptSource(class_, class_.__qualname__), "__mro__"), mro)
            for base in behind[: behind.index(owner)]:  # a class in between may gain the attribute later
                way = AttributeSource(KeptSource(base, base.__qualname__), "__dict__")
                domain.state.guard(GuardKind.LACKS, way, name)
        found = None if owner is None else self._bound(domain, owner, name, receiver, is_of_class=is_of_class)
        return unsupported(f"super().{name}", receiver) if found is None else found

    def _bound(
        self, domain: SymbolicDomain, owner: type, name: str, receiver: Value, *, is_of_class: bool
    ) -> Value | None:
        """Binds a class attribute to the receiver; None where that is not supported."""
        found = owner.__dict__[name]
        if (
            isinstance(receiver, SubclassTensorValue)
            and owner in torch.Tensor.__mro__[:-1]
            and inspect.isroutine(found)
        ):
            return _NativeMethodOfSuper(self, receiver, name)
        if name == "__new__" and is_of_class and owner in torch.Tensor.__mro__[:-1]:
            return ObjectValue(TensorBase.__new__)
        if name == "__new__" and is_of_class and owner is object:
            return ObjectValue(object.__new__)
        if name == "__new__" and is_of_class and owner in (list, tuple):
            return ObjectValue(owner.__new__)
        if found is object.__init__:
            return MethodValue(ObjectValue(polyfills.do_nothing), receiver)
        if any(found is known for known in _GIVEN_AS_THEY_ARE):
            return MethodValue(ObjectValue(found), receiver)
        is_init_of_error = (
            isinstance(receiver, ErrorValue) and is_a(found, WrapperDescriptorType) and name == "__init__"
        )
        if is_native_method(found, receiver.class_of()) or is_init_of_error:
            return _NativeMethodOfSuper(self, receiver, name)
        way = AttributeSource(KeptSource(owner, owner.__qualname__), name)
        if is_a(found, classmethod) and isinstance(found.__func__, FunctionType):
            class_ = receiver if is_of_class else ObjectValue(receiver.class_of())
            return MethodValue(domain.state.wrap(found.__func__, AttributeSource(way, "__func__")), class_)
        if is_a(found, staticmethod):
            return domain.state.wrap(found.__func__, way)
        if is_a(found, property) and not is_of_class and isinstance(found.fget, FunctionType):
            return domain.enter_function(domain.state.wrap(found.fget, AttributeSource(way, "fget")), [receiver], {})
        if not hasattr(type(found), "__get__"):
            return domain.state.wrap(found, way)
        if not is_a(found, FunctionType):
            return None
        function = domain.state.wrap(found, way)
        return function if is_of_class else MethodValue(function, receiver)

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, f"super({emitter.constant(self.class_)}, {emitter.expression(self.receiver)})")


class _NativeMethodOfSuper(NativeMethodValue):
    """`super().append`: behind a graph break it is found through `super` again, because the class may have an `append` too."""

    __slots__ = ("found_by",)

    def __init__(self, found_by: SuperValue, receiver: Value, name: str) -> None:
        super().__init__(receiver, name)
        self.found_by = found_by

    def rebuilt(self, emitter: Any) -> str:
        return emitter.named(self, f"getattr({emitter.expression(self.found_by)}, {self.name!r})")


def super_value(domain: SymbolicDomain, class_: Any, receiver: Any) -> SuperValue:
    """Calls `super`."""
    class_, receiver = domain.state.realize(class_), domain.state.realize(receiver)
    known: tuple[type, ...] = receiver.class_.__mro__ if isinstance(receiver, InstanceValue) else ()
    if isinstance(receiver, SubclassTensorValue):
        known = receiver.class_.__mro__
    if isinstance(receiver, ObjectValue):
        known = (*type(receiver.object).__mro__, *(receiver.object.__mro__ if receiver.is_class else ()))
    if not _is_class(class_) or class_.object not in known:
        unsupported("super()", receiver)
    return SuperValue(class_.object, receiver)


def _is_class(value: Any) -> bool:
    return isinstance(value, ObjectValue) and value.is_class


def _mro_of(receiver: Value) -> tuple[type, ...]:
    if isinstance(receiver, (InstanceValue, SubclassTensorValue)):
        return receiver.class_.__mro__
    if isinstance(receiver, ObjectValue):
        if receiver.is_class or receiver.source is not None:
            return type(receiver.object).__mro__
    unsupported("super()", receiver)
