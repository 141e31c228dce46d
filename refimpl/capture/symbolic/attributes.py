"""Attributes of symbolic values, and what is found through classes.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedObjectVariable.var_getattr, nn_module.py, tensor.py
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from enum import Enum, EnumMeta
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NoReturn

import numpy as np
import torch

from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import (
    AttributeSource,
    ItemSource,
    KeptSource,
    OwnAttributeSource,
    PlainAttributeSource,
    Source,
    class_source,
)
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter
from refimpl.capture.recognition import names_of
from refimpl.capture.symbolic import polyfills
from refimpl.capture.symbolic.base import SymbolicBase
from refimpl.capture.symbolic.classes import MISSING, finds_plainly, in_mro, is_a, is_named_tuple
from refimpl.capture.symbolic.dict_objects import is_native_method
from refimpl.capture.symbolic.iterable_calls import attribute_of_partial
from refimpl.capture.symbolic.lazy_iterators import CLASS_METHODS
from refimpl.capture.symbolic.operators import CONSTANT_TYPES
from refimpl.capture.symbolic.raising import raising, unsupported
from refimpl.capture.symbolic.unknown_gradients import unknown_gradient
from refimpl.capture.symbolic.values import (
    ArrayValue,
    CombinedIteratorValue,
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    DictViewValue,
    ErrorValue,
    FunctionObjectValue,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    MethodValue,
    NativeIteratorValue,
    NativeMethodValue,
    ObjectValue,
    PartialValue,
    RegionValue,
    SequenceValue,
    SetValue,
    SuperValue,
    TensorValue,
    Value,
)
from refimpl.capture.symbolic.watched_gradients import before_assigning, before_reading


def _names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Of tensors: known without running anything.
_METADATA = _names_in(
    """dtype device layout ndim requires_grad is_sparse is_sparse_csr is_quantized is_nested is_cuda is_cpu is_meta
    is_mkldnn is_xpu is_mps is_mtia is_vulkan is_xla is_maia is_ipu is_hpu itemsize nbytes"""
)
# Tensors that an attribute gives: nodes.
_TENSOR_ATTRIBUTES = frozenset(["T", "H", "mT", "mH", "real", "imag", "data"])
_VF: Any = vars(torch.nn.functional)[
    "_VF"
]  # a module with a `__getattr__` of its class, which gives functions written in C
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_FIELD = type(vars(namedtuple("Pair", "first"))["first"])  # of a named tuple, by name
_OF_FUNCTIONS = _names_in(
    "__name__ __qualname__ __module__ __doc__ __code__ __defaults__ __kwdefaults__ __closure__ __annotations__"
)
_GIVEN_AS_THEY_ARE = (
    FunctionType,
    WrapperDescriptorType,
    MethodDescriptorType,
)  # by a class, of which they are attributes
_PLAIN_GETTERS = (object.__getattribute__, type.__getattribute__, ModuleType.__getattribute__)
_MODULE_GETATTR = torch.nn.Module.__dict__["__getattr__"]


class SymbolicAttributes(SymbolicBase):
    """`value.name`."""

    def load_attr(self, value: Any, name: str) -> Any:
        value = self.state.see(value)
        match value:
            case TensorValue():
                return self._of_tensor(value, name)
            case ArrayValue():
                is_method = inspect.isroutine(getattr(np.ndarray, name, None))
                return NativeMethodValue(value, name) if is_method else self.attribute_of_array(value, name)
            case ObjectValue():
                return self._of_object(value, name)
            case InstanceValue():
                return self.attribute_of_instance(value, name)
            case SuperValue():
                return self._of_super(value, name)
            case SequenceValue() if isinstance(in_mro(value.class_, name), _FIELD):
                return value.items[value.class_._fields.index(name)]
            case SequenceValue() if isinstance(found := in_mro(value.class_, name), FunctionType):
                return MethodValue(self.state.wrap(found, _way_of_class(value.class_, name)), value)
            case SequenceValue() if is_named_tuple(value.class_) and name in ("_make", "_fields"):
                return self._of_class(
                    value.class_, KeptSource(value.class_, value.class_.__qualname__), name, ObjectValue(value.class_)
                )
            case ConstantValue():
                return self._of_constant(value, name)
            case FunctionValue():
                return _of_made_function(value, name)
            case PartialValue():
                return attribute_of_partial(self, value, name)
            case DequeValue() if name == "maxlen":
                return ConstantValue(value.maxlen)
            case DefaultDictValue() if name == "default_factory":
                return value.factory
            case SequenceValue() | DictValue() | SetValue() if name == "__class__":
                return ObjectValue(value.class_)
            case SequenceValue() | DictValue() | SetValue():
                return NativeMethodValue(value, name) if hasattr(value.class_, name) else raising(AttributeError)
            case DictViewValue() if name == "isdisjoint":
                return NativeMethodValue(value, name)
            case IteratorValue() | CombinedIteratorValue() | NativeIteratorValue() if name in ("__next__", "__iter__"):
                return NativeMethodValue(value, name)
            case RegionValue() if name in ("__enter__", "__exit__"):
                return NativeMethodValue(value, name)
            case GeneratorValue() if name in ("__next__", "__iter__", "send", "throw", "close"):
                return NativeMethodValue(value, name)
            case FunctionObjectValue() if name == "apply":
                return self.load_attr(ObjectValue(value.class_), name)
            case MethodValue() if name in ("__func__", "__self__"):
                return value.function if name == "__func__" else value.receiver
            case _:
                unsupported(f"attribute {name}", value)

    def has_attribute(self, value: Any, name: str) -> bool | None:
        """`hasattr`, guarded where there is none; None where code of the user's has to be run for it."""
        value = self.state.see(value)
        if isinstance(value, TensorValue):
            return hasattr(value.fake, name) if hasattr(torch.Tensor, name) else self._has_on_tensor(value, name)
        if isinstance(value, InstanceValue):
            return self.has_attribute_of_instance(value, name)
        if isinstance(value, FunctionValue):
            return name in value.attributes or hasattr(FunctionType, name)
        if isinstance(value, MethodValue) and not hasattr(MethodType, name):
            return self.has_attribute(value.function, name)
        if isinstance(value, ConstantValue):
            return hasattr(value.value, name)
        if isinstance(value, (SequenceValue, DictValue, SetValue)) and value.class_.__module__ in (
            "builtins",
            "collections",
        ):
            return hasattr(value.class_, name)
        if isinstance(value, ObjectValue) and is_a(value.object, type):
            return self._class_has(value, name)
        if not isinstance(value, ObjectValue) or value.source is None:
            unsupported("hasattr()", value)
        if self.state.effects.attribute(value, name) is not None:
            return True
        object_ = value.object
        if type(object_).__getattribute__ not in _PLAIN_GETTERS:
            return None
        found = inspect.getattr_static(object_, name, MISSING)
        getter = in_mro(type(object_), "__getattr__")
        if found is MISSING and not any(getter is known for known in (MISSING, _MODULE_GETATTR)):
            return None
        if is_a(found, (MemberDescriptorType, GetSetDescriptorType)) and hasattr(object_, name) is False:
            self.state.guard(GuardKind.WITHOUT, value.source, name)
            return False  # a slot without value
        if found is not MISSING:
            return None if is_a(found, property) else True
        if is_a(object_, torch.nn.Module) and any(name in object_.__dict__.get(table, ()) for table in _MODULE_TABLES):
            return True
        self.state.guard(GuardKind.WITHOUT, value.source, name)
        return False

    def _class_has(self, value: ObjectValue, name: str) -> bool:
        class_ = value.object
        if is_a(class_, EnumMeta) and name in class_.__dict__.get("_member_map_", ()):
            return True
        of_metaclass = getattr(type(class_), "__getattr__", None)
        if type(class_).__getattribute__ is not type.__getattribute__ or (
            of_metaclass is not None and of_metaclass is not getattr(EnumMeta, "__getattr__", None)
        ):
            unsupported("hasattr()", value)
        if in_mro(class_, name) is not MISSING or in_mro(type(class_), name) is not MISSING:
            return hasattr(class_, name) if is_a(in_mro(type(class_), name), GetSetDescriptorType) else True
        source = KeptSource(class_, class_.__qualname__) if value.source is None else value.source
        self.state.guard(GuardKind.WITHOUT, source, name)
        return False

    def _has_on_tensor(self, value: TensorValue, name: str) -> bool:
        """Of a name that tensors do not have: results of operators have no attributes of the program's."""
        if value.source is None:
            return False
        if hasattr(self.state.object_of(value), name):
            unsupported("hasattr()", value)
        self.state.guard(GuardKind.WITHOUT, value.source, name)
        return False

    # ------------------------------------------------------------------------------------------------------------- tensors

    def _of_tensor(self, value: TensorValue, name: str) -> Value:
        if name == "shape":
            return self.shape_value(value)
        if name in ("requires_grad", "is_leaf") and (reason := unknown_gradient(self.state, value)) is not None:
            unsupported(f"attribute {name} {reason}", value)
        if name == "is_leaf":
            return self._is_leaf(value)
        if name == "__class__":
            return ObjectValue(torch.nn.Parameter if isinstance(value.fake, torch.nn.Parameter) else torch.Tensor)
        if name in _METADATA:
            found = getattr(value.fake, name)
            return ConstantValue(found) if type(found) in CONSTANT_TYPES else unsupported(f"attribute {name}", value)
        if name in _TENSOR_ATTRIBUTES:
            return self.state.operator(getattr, [value, ConstantValue(name)], {})
        if inspect.isroutine(getattr(torch.Tensor, name, None)):
            return NativeMethodValue(value, name)
        raise before_reading(self.state, value, name)

    def _is_leaf(self, value: TensorValue) -> Value:
        """Of an input that requires gradients: as it is. Of a result: an operator may give its argument itself."""
        if not value.fake.requires_grad:
            return ConstantValue(True)
        if value.source is None:
            unsupported("attribute is_leaf", value)
        found = self.state.object_of(value).is_leaf
        if found is not value.fake.is_leaf:  # the segment has written to it
            unsupported("attribute is_leaf", value)
        self.state.guard(GuardKind.EQUALS, AttributeSource(value.source, "is_leaf"), found)
        return ConstantValue(found)

    def shape_value(self, value: TensorValue) -> Value:
        return SequenceValue(torch.Size, [self.size_value(value, dim) for dim in range(value.fake.dim())])

    def size_value(self, tensor: TensorValue, dim: int) -> Value:
        return self.state.size_of(tensor, dim)

    # ----------------------------------------------------------------------------------------------------------- constants

    def _of_constant(self, value: ConstantValue, name: str) -> Value:
        found = inspect.getattr_static(type(value.value), name, MISSING)
        if found is MISSING:
            raising(AttributeError)
        if name == "__class__":
            return ObjectValue(type(value.value))
        if inspect.isroutine(found):
            return NativeMethodValue(value, name)
        return self.value_of(getattr(value.value, name), f"attribute {name}")

    # ------------------------------------------------------------------------------------------------------------- objects

    def _of_object(self, value: ObjectValue, name: str) -> Any:
        object_, source = value.object, value.source
        if source is None:
            source = KeptSource(object_, getattr(object_, "__name__", type(object_).__name__))
        if is_a(object_, ModuleType):
            return self._of_namespace(names_of(object_, name), source, name, value)
        if is_a(object_, type):
            return self._of_class(object_, source, name, value)
        if name == "__dict__" and value.source is not None and not self.state.effects.has_attributes(value):
            if _has_own_attributes(object_) and not is_a(object_, (FunctionType, torch.Tensor)):
                return self.state.attributes_of(value)
        if is_a(object_, torch.Tensor) or name == "__dict__":
            unsupported(f"attribute {name}", value)
        if is_a(object_, FunctionType):
            return self._of_namespace(vars(object_), source, name, value)
        return self._of_instance(value, object_, source, name)

    def _of_namespace(self, names: dict[str, Any], source: Source, name: str, value: ObjectValue) -> Value:
        if name not in names:
            is_function = is_a(value.object, FunctionType)
            if name in _OF_FUNCTIONS if is_function else value.object is _VF and hasattr(_VF, name):
                return self.state.wrap(getattr(value.object, name), AttributeSource(source, name))
            if "__getattr__" in names or any(hasattr(type(value.object), finder) for finder in (name, "__getattr__")):
                unsupported(f"attribute {name}", value)
            self._raise_missing(source, name)
        return self.state.wrap(names[name], AttributeSource(source, name))

    def _of_class(self, class_: type, source: Source, name: str, value: ObjectValue) -> Value:
        if type(class_).__getattribute__ is not type.__getattribute__ or name in ("__dict__", "__mro__", "__bases__"):
            unsupported(f"attribute {name}", value)
        if name == "__name__":
            return ConstantValue(class_.__name__)
        if (id(class_), name) in CLASS_METHODS:
            return NativeMethodValue(value, name)
        if is_a(class_, EnumMeta) and name in class_.__dict__.get("_member_map_", ()):
            return self.state.wrap(class_.__dict__["_member_map_"][name], AttributeSource(source, name))
        found, of_metaclass = in_mro(class_, name), in_mro(type(class_), name)
        if of_metaclass is not MISSING and (found is MISSING or _is_data_descriptor(of_metaclass)):
            unsupported(f"attribute {name} of its metaclass", value)
        if is_a(found, staticmethod):
            return self.state.wrap(found.__func__, AttributeSource(source, name))
        if is_a(found, classmethod):
            function = self.state.wrap(found.__func__, AttributeSource(AttributeSource(source, name), "__func__"))
            return MethodValue(function, value)
        if found is MISSING and not hasattr(type(class_), "__getattr__"):
            self._raise_missing(source, name)
        if found is MISSING or (hasattr(type(found), "__get__") and not is_a(found, _GIVEN_AS_THEY_ARE)):
            unsupported(f"attribute {name}", value)
        return self.state.wrap(found, AttributeSource(source, name))

    def _raise_missing(self, source: Source, name: str) -> NoReturn:
        """There is no such attribute, and no code of the user's that could give one."""
        self.state.guard(GuardKind.WITHOUT, source, name)
        raising(AttributeError)

    def _of_instance(self, value: ObjectValue, object_: Any, source: Source, name: str) -> Any:
        class_ = type(object_)
        if not finds_plainly(class_):
            if in_mro(class_, "__getattr__") is not MISSING:  # it is asked where the other one raises
                unsupported(f"attribute {name}", value)
            return self.call_special(value, "__getattribute__", [ConstantValue(name)])
        found = self._of_instance_plainly(value, object_, source, name)
        if found is not MISSING:
            return found
        getter = in_mro(class_, "__getattr__")
        if getter is _MODULE_GETATTR:
            return self.of_module(value, name)
        if getter is MISSING:
            self._raise_missing(source, name)
        self._guard_missing(object_, source, name)
        return self.call_special(value, "__getattr__", [ConstantValue(name)])

    def plain_attribute(self, value: ObjectValue, name: str) -> Any:
        """`object.__getattribute__(value, name)`."""
        assert value.source is not None
        found = self._of_instance_plainly(value, value.object, value.source, name)
        if found is not MISSING:
            return found
        self._guard_missing(value.object, value.source, name)
        raising(AttributeError)

    def _guard_missing(self, object_: Any, source: Source, name: str) -> None:
        """Neither the object nor its class has the attribute. Asks no code of the user's."""
        if _has_own_attributes(object_):
            self.state.guard(GuardKind.LACKS, _way_to(object_, source, "__dict__"), name)
        self.state.guard(GuardKind.WITHOUT, class_source(object_), name)

    def _of_instance_plainly(self, value: ObjectValue, object_: Any, source: Source, name: str) -> Any:
        """What is there; MISSING where nothing is."""
        class_ = type(object_)
        written = self.state.effects.attribute(value, name)
        if written is not None:
            return written
        if self.state.effects.has_attributes(value) and name in _MODULE_TABLES:
            unsupported(f"attribute {name} after an assignment", value)
        if name == "__class__":
            return ObjectValue(class_, class_source(object_))
        on_class = in_mro(class_, name)
        if is_a(object_, Enum) and name in ("name", "value") and on_class is Enum.__dict__[name]:
            return self.state.wrap(object_.__dict__[f"_{name}_"], AttributeSource(source, f"_{name}_"))
        if on_class is not MISSING and _is_data_descriptor(on_class):
            return self._through_descriptor(value, on_class, source, name)
        own = _own_attributes(object_)
        if name in own:
            return self.state.wrap(own[name], _way_to(object_, source, name))
        if on_class is not MISSING:
            return self._through_class(value, on_class, source, name)
        return MISSING

    def _through_descriptor(self, value: ObjectValue, found: Any, source: Source, name: str) -> Any:
        if is_a(found, property) and isinstance(found.fget, FunctionType):
            way = AttributeSource(AttributeSource(class_source(value.object), name), "fget")
            return self.enter_function(self.state.wrap(found.fget, way), [value], {})
        if is_a(found, (MemberDescriptorType, GetSetDescriptorType)):
            try:
                content = object.__getattribute__(value.object, name)
            except AttributeError:
                return MISSING
            return self.state.wrap(content, _way_to(value.object, source, name))
        unsupported(f"descriptor {name}", value)

    def _through_class(self, value: ObjectValue, found: Any, source: Source, name: str) -> Value:
        way = _way_to(value.object, source, name)
        if is_a(found, FunctionType):
            return MethodValue(self.state.wrap(found, AttributeSource(way, "__func__")), value)
        if is_a(found, staticmethod):
            return self.state.wrap(found.__func__, way)
        if is_a(found, classmethod):
            function = self.state.wrap(found.__func__, AttributeSource(way, "__func__"))
            return MethodValue(function, ObjectValue(type(value.object), class_source(value.object)))
        if is_native_method(found, type(value.object)):
            return NativeMethodValue(value, name)
        if hasattr(type(found), "__get__"):
            unsupported(f"descriptor {name}", value)
        return self.state.wrap(found, way)

    def of_module(self, value: ObjectValue, name: str) -> Value:
        """What `nn.Module.__getattr__` finds: the first of three tables that has it."""
        module, source = value.object, value.source
        if source is None or any(self.state.effects.attribute(value, table) is not None for table in _MODULE_TABLES):
            unsupported(f"attribute {name}", value)
        for table in _MODULE_TABLES:
            names = module.__dict__.get(table)
            if names is not None and name in names:
                self.state.guard(GuardKind.LACKS, AttributeSource(source, "__dict__"), name)
                return self.state.wrap(names[name], ItemSource(OwnAttributeSource(source, table), name))
        if in_mro(type(module), "__getattr__") is not _MODULE_GETATTR:
            unsupported(f"attribute {name}", value)
        self._raise_missing(source, name)

    def _of_super(self, value: SuperValue, name: str) -> Value:
        receiver = self.state.see(value.receiver)
        if isinstance(receiver, InstanceValue):
            mro = receiver.class_.__mro__
        elif _is_class(receiver):
            mro = receiver.object.__mro__
        elif isinstance(receiver, ObjectValue) and receiver.source is not None:
            mro = type(receiver.object).__mro__
        else:
            unsupported("super()", receiver)
        for class_ in mro[mro.index(value.class_) + 1 :]:
            if name in class_.__dict__:
                found = class_.__dict__[name]
                if found is object.__setattr__:
                    return MethodValue(ObjectValue(found), receiver)
                if is_native_method(found, _class_of(receiver)):
                    return NativeMethodValue(receiver, name)
                if found is object.__init__:
                    return MethodValue(ObjectValue(polyfills.do_nothing), receiver)
                if found is object.__getattribute__:
                    return MethodValue(ObjectValue(object.__getattribute__), receiver)
                if isinstance(receiver, ErrorValue) and is_a(found, WrapperDescriptorType) and name == "__init__":
                    return NativeMethodValue(receiver, name)
                way = _way_of_class(class_, name)
                of_class = _is_class(receiver)
                if of_class and is_a(found, classmethod) and isinstance(found.__func__, FunctionType):
                    return MethodValue(self.state.wrap(found.__func__, AttributeSource(way, "__func__")), receiver)
                if is_a(found, staticmethod):
                    return self.state.wrap(found.__func__, way)
                if not is_a(found, FunctionType):
                    break
                function = self.state.wrap(found, way)
                return function if of_class else MethodValue(function, receiver)
        unsupported(f"super().{name}", receiver)

    def load_super_attr(self, frame: FrameState, super_: Any, class_: Any, self_: Any, name: str, given: bool) -> Any:
        super_ = self.state.see(super_)
        if not isinstance(super_, ObjectValue) or super_.object is not super:
            unsupported("super()", super_)
        return self._of_super(self.super_value(class_, self_), name)

    def super_value(self, class_: Any, receiver: Any) -> SuperValue:
        class_, receiver = self.state.see(class_), self.state.see(receiver)
        known: tuple[type, ...] = receiver.class_.__mro__ if isinstance(receiver, InstanceValue) else ()
        if isinstance(receiver, ObjectValue):
            known = (*type(receiver.object).__mro__, *(receiver.object.__mro__ if _is_class(receiver) else ()))
        if not _is_class(class_) or class_.object not in known:
            unsupported("super()", receiver)
        return SuperValue(class_.object, receiver)

    # ------------------------------------------------------------------------------------------------------------- writing

    def store_attr(self, value: Any, name: str, attribute: Any) -> Enter | None:
        value = self.state.see(value)
        if isinstance(value, InstanceValue):
            return self.set_attribute_of_instance(value, name, attribute)
        if isinstance(value, FunctionValue) and (name in ("__name__", "__doc__") or not name.startswith("__")):
            value.attributes[name] = attribute
            return None
        if not isinstance(value, ObjectValue) or not self._may_write(value, name):
            raise before_assigning(self.state, value, name)
        found = in_mro(type(value.object), name)
        if is_a(found, property) and isinstance(found.fset, FunctionType) and value.source is not None:
            way = AttributeSource(AttributeSource(class_source(value.object), name), "fset")
            return self.enter_function(self.state.wrap(found.fset, way), [value, attribute], {})
        if found is not MISSING and _is_data_descriptor(found):
            unsupported(f"an assignment to descriptor {name}", value)
        if is_a(value.object, torch.nn.Module) and not self._may_write_of_module(value.object, name, attribute):
            unsupported(f"an assignment to attribute {name} of a module", value)
        self.state.effects.set_attribute(value, name, attribute)

    def _may_write(self, value: ObjectValue, name: str) -> bool:
        """Whether an assignment does what it does to every object, and to one that the program can see."""
        object_ = value.object
        if value.source is None or is_a(object_, (type, ModuleType, FunctionType, torch.Tensor)):
            return False
        if self.state.has_frozen(value):
            return False
        setter = type(object_).__setattr__
        is_plain = setter is object.__setattr__ or setter is torch.nn.Module.__setattr__
        return is_plain and hasattr(object_, "__dict__") and name not in ("__dict__", "__class__")

    def _may_write_of_module(self, module: torch.nn.Module, name: str, attribute: Any) -> bool:
        """Of modules: plain values, and tensors that are no parameters. What registers something breaks."""
        new = self.state.see(attribute)
        if any(name in module.__dict__.get(table, ()) for table in ("_parameters", "_modules")):
            return False
        if isinstance(new, ObjectValue):
            return not is_a(new.object, (torch.nn.Module, torch.Tensor))
        return not isinstance(new, TensorValue) or not isinstance(new.fake, (torch.nn.Parameter, torch.nn.Buffer))

    def delete_attr(self, value: Any, name: str) -> Enter | None:
        value = self.state.see(value)
        if not isinstance(value, InstanceValue):
            unsupported(f"deleting attribute {name}", value)
        self.delete_attribute_of_instance(value, name)

    def call_special(self, value: Value, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class, where it is a function written in Python."""
        method = self.special(value, name)
        if method is None:
            return self.native_special(value, name, args)
        return self.enter_function(method.function, [value, *args], {})

    def hooks_of(self, value: ObjectValue) -> bool:
        """Whether calling the module runs more than its `forward`; guarded where it does not."""
        module, source = value.object, value.source
        assert source is not None
        tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        common = torch.nn.modules.module
        global_tables = [f"_global{name}" for name in tables]
        if any(module.__dict__.get(name) for name in tables) or any(getattr(common, name) for name in global_tables):
            return True
        if "_compiled_call_impl" in module.__dict__ or "forward" in module.__dict__:
            return True
        for name in tables:
            self.state.guard(GuardKind.EMPTY, OwnAttributeSource(source, name))
        for name in global_tables:
            self.state.guard(GuardKind.EMPTY, AttributeSource(KeptSource(common, "torch.nn.modules.module"), name))
        for name in ("_compiled_call_impl", "forward"):
            self.state.guard(GuardKind.LACKS, AttributeSource(source, "__dict__"), name)
        self.state.guard(GuardKind.ID, AttributeSource(class_source(module), "__call__"), type(module).__call__)
        return False


def _class_of(value: InstanceValue | ObjectValue) -> type:
    return value.class_ if isinstance(value, InstanceValue) else type(value.object)


def _of_made_function(value: FunctionValue, name: str) -> Value:
    """An attribute of a function that the segment defines."""
    if name in value.attributes:
        return value.attributes[name]
    match name:
        case "__name__":
            return ConstantValue(value.code.co_name)
        case "__qualname__":
            return ConstantValue(value.qualname or value.code.co_qualname)
        case "__module__" if type(value.globals.get("__name__")) is str:
            return ConstantValue(value.globals["__name__"])
        case "__doc__":
            first = value.code.co_consts[0] if value.code.co_consts else None
            return ConstantValue(first if type(first) is str else None)
        case _ if not name.startswith("__"):
            raising(AttributeError)
        case _:
            unsupported(f"attribute {name}", value)


def _is_class(value: Any) -> bool:
    return isinstance(value, ObjectValue) and is_a(value.object, type)


def _way_of_class(class_: type, name: str) -> Source:
    return AttributeSource(KeptSource(class_, class_.__qualname__), name)


def _own_attributes(object_: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(object_, "__dict__")
    except AttributeError:
        return {}


def _has_own_attributes(object_: Any) -> bool:
    return type(object_).__dictoffset__ != 0


def _way_to(object_: Any, source: Source, name: str) -> Source:
    """To an attribute, without code of the user's."""
    kind = AttributeSource if finds_plainly(type(object_)) else PlainAttributeSource
    return kind(source, name)


def _is_data_descriptor(found: Any) -> bool:
    return hasattr(type(found), "__get__") and (hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"))
