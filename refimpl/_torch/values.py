"""Tensors beside what is public of them, and objects that are no tensors and that graphs pass on."""

from __future__ import annotations

import functools
from typing import Any

import torch

# State that is no tensor: objects of C++ classes and registered Python ones, and the fakes that torch.library makes of them.
from torch._library import fake_class_registry as _fake_classes
from torch._library import opaque_object as _opaque_objects
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject

# Tensors that consist of other tensors.
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass

# Maps keyed by the identity of a tensor that do not keep it alive. A strong reference would change what is traced: autograd
# detaches a tensor somebody else holds, where it moves one that nobody does.
from torch.utils.weak import WeakTensorKeyDictionary as WeakTensorKeyDictionary

from refimpl._torch.fake_tensors import FakeTensorMode


def set_bits(tensor: torch.Tensor, *, is_conj: bool, is_neg: bool) -> None:
    """Mark the tensor's data as conjugated or negated lazily, as views by `conj` and `imag` are."""
    if tensor.is_conj() is not is_conj:
        torch._C._set_conj(tensor, is_conj)
    if tensor.is_neg() is not is_neg:
        torch._C._set_neg(tensor, is_neg)


def set_wrapped_number(tensor: torch.Tensor, number: complex) -> None:
    """Modes get the number for a tensor that stands for one in Python; of the tensor itself, the dispatcher reads the memory."""
    vars(tensor)["_wrapped_number"] = number


def swap_tensor_impl(a: torch.Tensor, b: torch.Tensor) -> None:
    """Two objects exchange what they are. The public function refuses tensors that a weak map knows, as a trace's does."""
    torch._C._swap_tensor_impl(a, b)


def has_no_dispatch_of_its_own(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors, like Parameter, does at the dispatcher what Tensor does."""
    return getattr(kind, "__torch_dispatch__") is getattr(torch.Tensor, "__torch_dispatch__")


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage: `untyped_storage()` makes a new Python object at every call, the C++ object stays."""
    return tensor.untyped_storage()._cdata


def is_opaque_object(value: object) -> bool:
    """Whether a graph passes the value on without looking into it: a script object, its fake, or of a registered class.

    Of the registered classes those with identity: one of plain values, as enumerations are, is a literal.
    """
    return isinstance(value, (torch.ScriptObject, FakeScriptObject)) or _is_opaque_type(type(value))


@functools.lru_cache(maxsize=1024)
def _is_opaque_type(kind: type) -> bool:
    is_value_type = getattr(_opaque_objects, "is_opaque_value_type", None)  # torch 2.13
    return _opaque_objects.is_opaque_type(kind) and not (is_value_type is not None and is_value_type(kind))


def fake_object(fake_mode: FakeTensorMode, value: Any) -> Any:
    """The fake of a script or opaque object; the object itself where its class has no fake."""
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
