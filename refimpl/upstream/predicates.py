"""Predicates on objects: exact types, named tuples, functions, constants.

Counterpart: torch/_dynamo/utils.py istype, is_typing, hashable, is_namedtuple, is_function, is_safe_constant and others
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import types
import typing
from typing import Any

import numpy as np
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils.checkpoint import checkpoint

from refimpl._torch import FakeTensor, OpOverload, OpOverloadPacket, TensorBase
from refimpl.capture.config import config

_FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip
common_constant_types: set[type] = {
    int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), types.CodeType, torch.device, torch.dtype,
    torch.memory_format, torch.layout,
}  # fmt: skip


def _spellings(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtype, once for every name that torch has for it: twice for float32, which is also `torch.float`."""
    return tuple(value for value in vars(torch).values() if value is dtype)


# legacy tensor class -> the name of its dtype
tensortype_to_dtype: dict[Any, tuple[torch.dtype, ...]] = {
    legacy: _spellings(legacy.dtype)
    for name in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    for legacy in [getattr(torch, f"{name}Tensor")]
}


def istype(obj: object, allowed_types: Any) -> bool:
    """Whether the object's class is exactly this one, or one of these. Subclasses do not count."""
    if isinstance(allowed_types, (tuple, list, set, frozenset)):
        return type(obj) in allowed_types
    return type(obj) is allowed_types


# A class written in C from Python 3.12 on, which no longer shares the others' base.
_TYPE_PARAMETERS = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "ParamSpecArgs", "ParamSpecKwargs", "TypeVarTuple", "TypeAliasType")
    if hasattr(typing, name)
)


def is_typing(value: Any) -> bool:
    """Whether it is a type annotation: of `typing`, or a generic alias."""
    return isinstance(value, (typing._Final, *_TYPE_PARAMETERS)) or value is typing.Generic


def hashable(x: Any) -> bool:
    """Whether it can be a key. False also if hashing raises ValueError, as for writable memory."""
    try:
        hash(x)
    except (TypeError, ValueError):
        return False
    return True


def is_namedtuple_cls(cls: Any) -> bool:
    """Whether it is a class of named tuples, of `torch.return_types`, or of `torch.autograd.forward_ad`."""
    if not isinstance(cls, type) or not issubclass(cls, tuple):
        return False
    if getattr(cls, "__module__", "") in ("torch.return_types", "torch.autograd.forward_ad"):
        return True
    fields = getattr(cls, "_fields", None)
    return isinstance(fields, tuple) and callable(getattr(cls, "_make", None)) and cls.__bases__ == (tuple,)


def is_namedtuple(obj: Any) -> bool:
    """Whether it is an instance of such a class."""
    return is_namedtuple_cls(type(obj))


def namedtuple_fields(cls: type) -> list[str]:
    """The field names of a named tuple, of a `torch.return_types` class, or of a slice. Raises AttributeError for others."""
    if cls is slice:
        return ["start", "stop", "step"]
    if hasattr(cls, "_fields"):
        return list(getattr(cls, "_fields"))
    places: dict[int, str] = {}
    marks = cls.__new__(cls, tuple(range(getattr(cls, "n_fields"))))
    for name, member in vars(cls).items():
        if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)) and not name.startswith("_"):
            places.setdefault(getattr(marks, name), name)
    return [places[index] for index in sorted(places)]


def is_function(value: Any) -> bool:
    """Whether it is a Python or C function, or a method descriptor."""
    return isinstance(value, _FUNCTIONS)


def is_lru_cache_wrapped_function(value: Any) -> bool:
    """Whether it is a function wrapped by `functools.lru_cache`."""
    return isinstance(value, functools._lru_cache_wrapper)


def is_function_or_wrapper(value: Any) -> bool:
    """Whether it is a function, or an operator of torch."""
    return is_function(value) or isinstance(value, (OpOverload, OpOverloadPacket))


def unwrap_with_attr_name_if_wrapper(fn: Any) -> tuple[Any, str | None]:
    """The function inside a wrapper of capture or `lru_cache`, and the name of the attribute that holds it."""
    for name, is_one in (("_torchdynamo_inline", is_function), ("__wrapped__", is_lru_cache_wrapped_function)):
        if is_one(fn) and inspect.getattr_static(fn, name, None) is not None:
            return getattr(fn, name), name
    return fn, None


def unwrap_if_wrapper(fn: Any) -> Any:
    """The function inside a wrapper."""
    return unwrap_with_attr_name_if_wrapper(fn)[0]


def is_numpy_ndarray(value: Any) -> bool:
    """Whether it is exactly a numpy array."""
    return istype(value, np.ndarray)


def is_numpy_int_type(value: Any) -> bool:
    """Whether it is a numpy integer."""
    return isinstance(value, np.integer)


def is_numpy_float_type(value: Any) -> bool:
    """Whether it is a numpy float."""
    return isinstance(value, np.floating)


def istensor(obj: Any) -> bool:
    """Whether it is captured as a tensor: exactly of these classes, or of one that a setting adds."""
    known = (torch.Tensor, torch.nn.Parameter, FakeTensor, *config.traceable_tensor_subclasses)
    return type(obj) in known


def is_jit_model(model: Any) -> bool:
    """Whether it is a TorchScript module or function."""
    return isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def is_safe_constant(v: Any) -> bool:
    """Whether it may be written into code: constants, enum members, classes, slices, and tuples and frozensets of them."""
    kind = type(v)
    if kind is tuple or kind is frozenset:
        return all(is_safe_constant(part) for part in v)
    return kind is slice or kind in common_constant_types or isinstance(v, (type, enum.Enum))


def getfile(obj: Any) -> str | None:
    """The file that defines an object; None if there is none."""
    with contextlib.suppress(OSError, TypeError):  # builtins, and code made by `exec`
        return inspect.getfile(obj)
    return None


def fqn(obj: Any) -> str:
    """The module and the qualified name."""
    return f"{obj.__module__}.{obj.__qualname__}"


def object_has_getattribute(value: Any) -> bool:
    """Whether the object's class has its own `__getattribute__`."""
    return any(isinstance(vars(class_).get("__getattribute__"), types.FunctionType) for class_ in type(value).__mro__)


def get_custom_getattr(value: Any, ignore_nn_module_getattr: bool = False) -> Any:
    """The `__getattr__` of the object's class; None if there is none, or if it is torch.nn.Module's and that is ignored."""
    found = inspect.getattr_static(type(value), "__getattr__", None)
    if ignore_nn_module_getattr and found is torch.nn.Module.__getattr__:
        return None
    return found


def get_static_address_type(t: Any) -> Any:
    """The mark of `mark_static_address` on a tensor; None if there is none."""
    return getattr(t, "_dynamo_static_input_type", None)


def is_lazy_module(mod: Any) -> bool:
    """Whether it is a module whose parameters may be uninitialised."""
    return isinstance(mod, LazyModuleMixin)


def is_utils_checkpoint(obj: Any) -> bool:
    """Whether it is `torch.utils.checkpoint.checkpoint`."""
    return obj is checkpoint


def is_rng_state_getter_or_setter(value: Any) -> bool:
    """Whether it reads or sets the state of a random generator."""
    by_name = getattr(value, "__name__", "") in ("get_state", "set_state") and isinstance(
        getattr(value, "__self__", None), torch.Generator
    )
    return by_name or any(value is function for function in _RNG_STATE)


_RNG_STATE = (
    *(getattr(module, f"{verb}_rng_state") for module in (torch, torch.random, torch.cuda) for verb in ("get", "set")),
    torch.Generator.get_state, torch.Generator.set_state,
)  # fmt: skip


def is_tensor_base_attr_getter(value: Any) -> bool:
    """Whether it is the getter of a tensor attribute that is implemented in C++."""
    holder = getattr(value, "__self__", None)
    return (
        isinstance(value, types.MethodWrapperType)
        and value.__name__ == "__get__"
        and getattr(holder, "__objclass__", None) is TensorBase
    )


def is_torch_function_object(value: Any) -> bool:
    """Whether it has `__torch_function__`."""
    return hasattr(value, "__torch_function__")
