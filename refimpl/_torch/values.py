"""Non-public properties of tensors, and script and opaque objects, which graphs pass on without looking into them."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import torch

# Script objects, objects of registered opaque classes, and their fakes.
from torch._library import fake_class_registry as _fake_classes
from torch._library import opaque_object as _opaque_objects
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject

# Wrapper subclasses of Tensor.
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

# A weak map keyed by tensor identity. A strong reference would change the trace: autograd detaches a gradient that somebody else
# references, and steals one that nobody does.
from torch.utils.weak import WeakTensorKeyDictionary as WeakTensorKeyDictionary

from refimpl._torch.fake_tensors import FakeTensorMode

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
# Functions on symbolic numbers, such as torch.sym_max, without those that are ops.
SYMBOLIC_FUNCTIONS = tuple(
    value for name, value in vars(torch).items() if name.startswith("sym_") and isinstance(value, FunctionType)
)


def set_bits(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> None:
    """Set the tensor's lazy conjugate and negative bits, which views by `conj` and `imag` have."""
    if tensor.is_conj() is not is_conj:
        torch._C._set_conj(tensor, is_conj)
    if tensor.is_neg() is not is_neg:
        torch._C._set_neg(tensor, is_neg)


def set_wrapped_number(tensor: torch.Tensor, number: complex) -> None:
    """Set the Python number of a wrapped number tensor. Modes receive this number; the dispatcher itself would read the data."""
    vars(tensor)["_wrapped_number"] = number


def swap_tensor_impl(a: torch.Tensor, b: torch.Tensor) -> None:
    """Swap two tensor objects. The public function refuses tensors with weak references, which a trace's tracker has."""
    torch._C._swap_tensor_impl(a, b)


def has_no_dispatch_of_its_own(kind: type[torch.Tensor]) -> bool:
    """Whether a Tensor subclass, like Parameter, has no `__torch_dispatch__` of its own."""
    return getattr(kind, "__torch_dispatch__") is getattr(torch.Tensor, "__torch_dispatch__")


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage. `untyped_storage()` returns a new Python object at each call."""
    return tensor.untyped_storage()._cdata


def is_opaque_object(value: object) -> bool:
    """Whether the value is a script object, its fake, or an object of a registered opaque class.

    Objects of opaque value types, such as enums, are literals instead.
    """
    return isinstance(value, (torch.ScriptObject, FakeScriptObject)) or _is_opaque_type(type(value))


@functools.lru_cache(maxsize=1024)
def _is_opaque_type(kind: type) -> bool:
    is_value_type = getattr(_opaque_objects, "is_opaque_value_type", None)  # torch 2.13
    return _opaque_objects.is_opaque_type(kind) and not (is_value_type is not None and is_value_type(kind))


def fake_object(fake_mode: FakeTensorMode, value: Any) -> Any:
    """The fake of a script or opaque object; the object itself if its class has no fake."""
    if isinstance(value, torch.ScriptObject) and not _fake_classes.has_fake_class(value._type().qualified_name()):
        return value
    return _fake_classes.maybe_to_fake_obj(fake_mode, value)


__all__ = [
    "FakeScriptObject",
    "WeakTensorKeyDictionary",
    "fake_object",
    "has_no_dispatch_of_its_own",
    "is_opaque_object",
    "is_traceable_wrapper_subclass",
    "set_bits",
    "set_wrapped_number",
    "storage_key",
    "swap_tensor_impl",
]
