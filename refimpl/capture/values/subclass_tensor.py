"""Tensors of subclasses: of the program's classes that derive from torch.Tensor, wrappers of tensors among them.

Counterpart: torch/_dynamo/variables/torch_function.py TensorWithTFOverrideVariable, TensorSubclassVariable
Differs: the graph of a class without `__torch_dispatch__` holds plain tensors, and the class is put on afterwards. A wrapper is
a wrapper in the graph too.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import is_traceable_wrapper_subclass, no_torch_function, without_overrides
from refimpl.capture.config import config
from refimpl.capture.guards.sources import AttributeSource, KeptSource
from refimpl.capture.recognition import defined_in
from refimpl.capture.values.bound import MethodValue
from refimpl.capture.values.classes import MISSING, in_mro, is_a, is_named_tuple
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.hashing import CONSTANT_TYPES
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.tensor import TensorValue
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from torch.fx import Node

    from refimpl.capture.guards.sources import Source
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_OF_TENSOR = (torch.Tensor, *torch.Tensor.__mro__[1:])
_TENSOR: Any = torch.Tensor
NO_DISPATCH: Any = _TENSOR.__torch_dispatch__
_DEFAULT = torch.Tensor.__dict__["__torch_function__"]
_IN_PLACE = tuple(
    function for name, function in vars(operator).items() if f"__{name}__" in vars(operator) and name[0] == "i"
)
_REFLECTED = {"lt": "__gt__", "gt": "__lt__", "le": "__ge__", "ge": "__le__", "eq": "__eq__", "ne": "__ne__"}
_PLAIN_SETTERS = (object.__setattr__, torch.Tensor.__setattr__)


class SubclassTensorValue(TensorValue):
    """A tensor of a subclass. The fake is a wrapper of fakes for a traceable wrapper, else a plain fake."""

    __slots__ = ("class_",)

    def __init__(self, node: Node, fake: torch.Tensor, class_: type, source: Source | None = None) -> None:
        super().__init__(node, fake, source)
        self.class_ = class_

    @property
    def kind(self) -> str:
        return self.class_.__name__

    @property
    def is_wrapper(self) -> bool:
        """Whether the graph has tensors of this class."""
        return is_traceable_wrapper_subclass(self.fake)

    @property
    def parts(self) -> list[str]:
        """The names of the tensors inside of a wrapper."""
        fake: Any = self.fake
        return fake.__tensor_flatten__()[0]

    def class_of(self) -> type:
        return self.class_

    def class_of_operand(self) -> type:
        return self.class_

    @property
    def is_object(self) -> bool:
        return False

    def overrides_operator(self, *names: str) -> bool:
        """Whether the class has one of these special methods written in Python."""
        return any(isinstance(self._of_class(name), FunctionType) for name in names)

    def hides_method(self, name: str) -> bool:
        """Overrides TensorValue: `super().add_` of a class with an `add_` of its own is torch's."""
        return self._of_class(name) is not MISSING

    def _of_class(self, name: str) -> Any:
        """The attribute of the class that is not one of torch.Tensor's; MISSING if there is none."""
        for base in self.class_.__mro__:
            if base in _OF_TENSOR:
                break
            if name in base.__dict__:
                return base.__dict__[name]
        return MISSING

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        if name == "__class__":
            return domain.object(self.class_)
        found = self._of_class(name)
        if found is MISSING and name == "__torch_function__":
            return MethodValue(ObjectValue(_DEFAULT.__func__), ObjectValue(self.class_))
        written = self.written(domain, name)
        if found is not MISSING:
            return self._of_class_bound(domain, found, name)
        if written is not None:
            return written
        if hasattr(torch.Tensor, name):
            return super().load_attr(domain, name)
        if self.is_wrapper and name in self.parts:
            return self._part(domain, name)
        return self._own(domain, name)

    def _part(self, domain: SymbolicDomain, name: str) -> Value:
        """A tensor inside of a wrapper."""
        return domain.state.operator(getattr, [self, domain.constant(name)], {})

    def _own(self, domain: SymbolicDomain, name: str) -> Value:
        """An attribute in the tensor's `__dict__`."""
        if self.source is not None:
            real = domain.state.object_of(self)
            if name in real.__dict__:
                return domain.state.wrap(real.__dict__[name], AttributeSource(self.source, name))
        elif (
            self.is_wrapper
            and name in self.fake.__dict__
            and (found := _constant(self.fake.__dict__[name])) is not None
        ):
            return found
        if self._of_class("__getattr__") is not MISSING or self._of_class("__getattribute__") is not MISSING:
            unsupported(f"attribute {name}", self)
        return self.missing(domain, name)

    def _in_slot(self, domain: SymbolicDomain, name: str) -> Any:
        """What the tensor has in a slot of its class; None where that is not known."""
        written = self.written(domain, name)
        if written is not None:
            return written
        if self.is_wrapper and name in self.parts:
            return self._part(domain, name)
        held: Any = self.fake if self.source is None else domain.state.object_of(self)
        if not hasattr(held, name):
            return None
        found = object.__getattribute__(held, name)
        return (
            domain.state.wrap(found, AttributeSource(self.source, name))
            if self.source is not None
            else _constant(found)
        )

    def _of_class_bound(self, domain: SymbolicDomain, found: Any, name: str) -> Any:
        way = AttributeSource(KeptSource(self.class_, self.class_.__qualname__), name)
        if isinstance(found, FunctionType):
            return MethodValue(domain.state.wrap(found, way), self)
        if is_a(found, property) and isinstance(found.fget, FunctionType):
            return domain.enter_function(domain.state.wrap(found.fget, AttributeSource(way, "fget")), [self], {})
        if is_a(found, staticmethod):
            return domain.state.wrap(found.__func__, way)
        if is_a(found, classmethod):
            function = domain.state.wrap(found.__func__, AttributeSource(way, "__func__"))
            return MethodValue(function, ObjectValue(self.class_))
        if is_a(found, MemberDescriptorType) and (held := self._in_slot(domain, name)) is not None:
            return held
        if hasattr(type(found), "__get__") and not callable(found):
            unsupported(f"attribute {name}", self)
        written = self.written(domain, name)
        if written is not None:
            return written
        if self.source is not None and name in domain.state.object_of(self).__dict__:
            return self._own(domain, name)
        return domain.state.wrap(found, way)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        if self._of_class(name) is not MISSING or self.written(domain, name) is not None:
            return True
        if self.is_wrapper and name in self.fake.__dict__:
            return True
        return super().has_attribute(domain, name)

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> Any:
        found = self._of_class(name)
        if is_a(found, property) and isinstance(found.fset, FunctionType):
            way = AttributeSource(AttributeSource(KeptSource(self.class_, self.class_.__qualname__), name), "fset")
            return domain.enter_function(domain.state.wrap(found.fset, way), [self, attribute], {})
        is_inside = self.is_wrapper and name in self.parts
        if not any(self.class_.__setattr__ is known for known in _PLAIN_SETTERS) or is_inside:
            unsupported(f"an assignment to attribute {name}", self)
        if found is not MISSING and hasattr(type(found), "__set__"):
            unsupported(f"an assignment to descriptor {name}", self)
        return super().store_attr(domain, name, attribute)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if name == "__tensor_flatten__" and isinstance(self._of_class(name), FunctionType):
            return domain.enter_function(
                self._of_class_bound(domain, self._of_class(name), name), [self, *args], kwargs
            )
        return super().call_method(domain, frame, name, args, kwargs)

    def runs_code(self, domain: SymbolicDomain) -> bool:
        """Overrides TensorValue: the class may answer `unbind`."""
        is_asked = is_overriding(self.class_) and not (self.is_wrapper and runs_below(self.class_))
        return super().runs_code(domain) or (is_asked and domain.state.overrides.asks_classes and self.fake.dim() > 0)

    # ------------------------------------------------------------------------------------------------- rebuilding

    def rebuilt(self, emitter: Any) -> str:
        if self.is_wrapper:
            return super().rebuilt(emitter)
        plain = emitter.output(self.node)
        name = emitter.named(self, f"{emitter.constant(as_class)}({plain}, {emitter.constant(self.class_)})")
        self.rebuild_attributes(emitter, name)
        return name


def _constant(found: Any) -> Value | None:
    """A constant, or a tuple or named tuple of constants, that a constructor has put on a fake; None for another object."""
    if type(found) in CONSTANT_TYPES:
        return ConstantValue(found)
    if type(found) is not tuple and not (is_a(found, tuple) and is_named_tuple(type(found))):
        return None
    items = [_constant(item) for item in found]
    known = [item for item in items if item is not None]
    return SequenceValue(type(found), known) if len(known) == len(items) else None


def overriding_method(operation: Any, operands: Sequence[Value]) -> tuple[Any, ...] | None:
    """The special method in Python that a class of tensors has for an operator: its name, the operand of that class, the others.

    None where torch's own operator runs.
    """
    name = operation.__name__.strip("_")
    if not any(isinstance(operand, SubclassTensorValue) for operand in operands):
        return None
    plain = name.removeprefix("i") if operation in _IN_PLACE else name
    first, *others = operands
    for method in dict.fromkeys((f"__{name}__", f"__{plain}__")):
        if isinstance(first, SubclassTensorValue) and first.overrides_operator(method):
            return method, first, *others
    if len(operands) == 2 and isinstance(operands[1], SubclassTensorValue):
        reflected = _REFLECTED.get(plain, f"__r{plain}__")
        if operands[1].overrides_operator(reflected):
            return reflected, operands[1], first
    return None


def as_class(tensor: torch.Tensor, class_: type) -> torch.Tensor:
    """The tensor as one of the class; the tensor itself if it is."""
    if type(tensor) is class_:
        return tensor
    with without_overrides():
        return tensor.as_subclass(class_)


def is_known_subclass(tensor: torch.Tensor) -> bool:
    """Whether capture knows what tensors of this class do: a traceable wrapper, or a class without `__torch_dispatch__`."""
    class_: Any = type(tensor)
    if class_ in config.nontraceable_tensor_subclasses:
        return False
    if is_traceable_wrapper_subclass(tensor):
        return True
    return class_.__torch_dispatch__ is NO_DISPATCH and not is_a(tensor, torch.nn.Parameter)


def ragged_part(jagged: torch.Tensor) -> str:
    """The attribute of a jagged tensor whose tensor decides which others have the same ragged dimension."""
    wrapper: Any = jagged
    parts, _ = wrapper.__tensor_flatten__()
    return "_lengths" if "_lengths" in parts else "_offsets"


def is_overriding(class_: type) -> bool:
    """Whether torch asks instances of the class before it runs a function on them."""
    return getattr(class_, "__torch_function__", no_torch_function) is not no_torch_function


def runs_below(class_: type) -> bool:
    """Whether operators of the graph may run the class's `__torch_function__` themselves: torch.Tensor's, or one of torch's own.

    A method of the program's is captured, since it may have effects. That of jagged tensors only chooses among operators.
    """
    method = in_mro(class_, "__torch_function__")
    if method is _DEFAULT:
        return True
    function = getattr(method, "__func__", None)
    return isinstance(function, FunctionType) and defined_in(function).startswith("torch.")
