"""What kind of thing an object is: exact types, named tuples, functions, constants.

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
    """The dtype once for every name that torch has for it: twice for float32, which is `torch.float` too."""
    return tuple(value for value in vars(torch).values() if value is dtype)


# Legacy classes of tensors -> what their dtype is called.
tensortype_to_dtype: dict[Any, tuple[torch.dtype, ...]] = {
    legacy: _spellings(legacy.dtype)
    for name in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    for legacy in [getattr(torch, f"{name}Tensor")]
}


def istype(obj: object, allowed_types: Any) -> bool:
    """Whether the class of an object is this one, or one of these; a subclass is another class."""
    if isinstance(allowed_types, (tuple, list, set, frozenset)):
        return type(obj) in allowed_types
    return type(obj) is allowed_types


# Written in C from Python 3.12 on, and then not derived from what the others are derived from.
_TYPE_PARAMETERS = tuple(
    getattr(typing, name)
    for name in ("TypeVar", "ParamSpec", "ParamSpecArgs", "ParamSpecKwargs", "TypeVarTuple", "TypeAliasType")
    if hasattr(typing, name)
)


def is_typing(value: Any) -> bool:
    """Whether it is a thing for annotations: of `typing`, or a generic alias."""
    return isinstance(value, (typing._Final, *_TYPE_PARAMETERS)) or value is typing.Generic


def hashable(x: Any) -> bool:
    """Whether it may be a key: False too where hashing it raises ValueError, as of memory that may be written to."""
    try:
        hash(x)
    except (TypeError, ValueError):
        return False
    return True


def is_namedtuple_cls(cls: Any) -> bool:
    """Whether a class is one of named tuples, of `torch.return_types`, or of `torch.autograd.forward_ad`."""
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
    """The names of the parts of a named tuple, of a result of torch, or of a slice. Raises AttributeError for another class."""
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
    """Whether it is a function of Python or C, or a method that a class of C has."""
    return isinstance(value, _FUNCTIONS)


def is_lru_cache_wrapped_function(value: Any) -> bool:
    """Whether it is what `functools.lru_cache` makes of a function."""
    return isinstance(value, functools._lru_cache_wrapper)


def is_function_or_wrapper(value: Any) -> bool:
    """A function, or an operator of torch."""
    return is_function(value) or isinstance(value, (OpOverload, OpOverloadPacket))


def unwrap_with_attr_name_if_wrapper(fn: Any) -> tuple[Any, str | None]:
    """The function that a wrapper of capture or of `lru_cache` stands for, and the attribute that has it."""
    for name, is_one in (("_torchdynamo_inline", is_function), ("__wrapped__", is_lru_cache_wrapped_function)):
        if is_one(fn) and inspect.getattr_static(fn, name, None) is not None:
            return getattr(fn, name), name
    return fn, None


def unwrap_if_wrapper(fn: Any) -> Any:
    """The function that a wrapper stands for."""
    return unwrap_with_attr_name_if_wrapper(fn)[0]


def is_numpy_ndarray(value: Any) -> bool:
    """Whether it is an array of numpy itself."""
    return istype(value, np.ndarray)


def is_numpy_int_type(value: Any) -> bool:
    """Whether it is an integer of numpy."""
    return isinstance(value, np.integer)


def is_numpy_float_type(value: Any) -> bool:
    """Whether it is a float of numpy."""
    return isinstance(value, np.floating)


def istensor(obj: Any) -> bool:
    """Whether it is a tensor that is captured as one: exactly of these classes, or of one that a setting names."""
    known = (torch.Tensor, torch.nn.Parameter, FakeTensor, *config.traceable_tensor_subclasses)
    return type(obj) in known


def is_lazy_module(mod: Any) -> bool:
    """Whether it is a module whose parameters may have no shapes yet."""
    return isinstance(mod, LazyModuleMixin)


def is_jit_model(model: Any) -> bool:
    """Whether it is TorchScript: of a module or of a function."""
    return isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction))


def is_safe_constant(v: Any) -> bool:
    """Whether a value may be written into code: constants, enumerations, classes, slices, and tuples and frozensets of them."""
    kind = type(v)
    if kind is tuple or kind is frozenset:
        return all(is_safe_constant(part) for part in v)
    return kind is slice or kind in common_constant_types or isinstance(v, (type, enum.Enum))


def getfile(obj: Any) -> str | None:
    """The file that an object is written in; None where there is none."""
    with contextlib.suppress(OSError, TypeError):  # of what is built in, or was made by `exec`
        return inspect.getfile(obj)
    return None


def fqn(obj: Any) -> str:
    """Module and qualified name."""
    return f"{obj.__module__}.{obj.__qualname__}"


def object_has_getattribute(value: Any) -> bool:
    """Whether the class of an object finds attributes by code of its own."""
    return any(isinstance(vars(class_).get("__getattribute__"), types.FunctionType) for class_ in type(value).__mro__)


def get_custom_getattr(value: Any, ignore_nn_module_getattr: bool = False) -> Any:
    """The `__getattr__` of an object's class; None where it has none, or that of torch.nn.Module which is not to count."""
    found = inspect.getattr_static(type(value), "__getattr__", None)
    if ignore_nn_module_getattr and found is torch.nn.Module.__getattr__:
        return None
    return found


def get_static_address_type(t: Any) -> Any:
    """What `mark_static_address` noted on a tensor; None for one that is not marked."""
    return getattr(t, "_dynamo_static_input_type", None)


def is_rng_state_getter_or_setter(value: Any) -> bool:
    """Whether it reads or writes the state of a generator."""
    by_name = getattr(value, "__name__", "") in ("get_state", "set_state") and isinstance(
        getattr(value, "__self__", None), torch.Generator
    )
    return by_name or any(value is function for function in _RNG_STATE)


_RNG_STATE = (
    torch.get_rng_state, torch.set_rng_state, torch.random.get_rng_state, torch.random.set_rng_state,
    torch.cuda.get_rng_state, torch.cuda.set_rng_state, torch.Generator.get_state, torch.Generator.set_state,
)  # fmt: skip


def is_tensor_base_attr_getter(value: Any) -> bool:
    """Whether it is the getter of an attribute that tensors have from C++."""
    holder = getattr(value, "__self__", None)
    return (
        isinstance(value, types.MethodWrapperType)
        and value.__name__ == "__get__"
        and getattr(holder, "__objclass__", None) is TensorBase
    )


def is_torch_function_object(value: Any) -> bool:
    """Whether functions of torch ask it first."""
    return hasattr(value, "__torch_function__")
