"""Texts of values that a key depends on: constants, operators, and functions of torch and refimpl.

A function stands for its code, so that only functions are described whose code is that of torch or refimpl: their versions are
part of the key.

Counterpart: torch/_functorch/_aot_autograd/autograd_cache.py check_node_safe, is_safe_torch_function
Differs: a function is known by where its code lies, not by a list of names.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import math
import operator
import sys
import types
from pathlib import Path
from typing import Any

import torch

from refimpl._torch import HigherOrderOperator, OpOverload, OpOverloadPacket, native_namespaces
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.archive.symbols import SymbolWriter
from refimpl.export.archive.values import ValueWriter

_TORCH = Path(torch.__file__).parent
_REFIMPL = Path(__file__).parents[1]
_TESTS = _REFIMPL / "tests"
_OWN_NAMESPACES = ("aten", "prims", "prim")
_OWNERS = (
    ("operator", operator), ("math", math), ("builtins", builtins), ("torch", torch), *native_namespaces(),
    ("torch.nn.functional", torch.nn.functional), ("torch.Tensor", torch.Tensor),
)  # fmt: skip
_NATIVE = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)


class Describer:
    """Writes values of one key. A function that contains itself is written once."""

    def __init__(self, symbols: SymbolWriter) -> None:
        self._values = ValueWriter(symbols, self._special)
        self._functions: dict[int, int] = {}
        self._held: list[Any] = []  # keeps the ids of functions from being reused

    def record(self, value: Any, where: str) -> Any:
        """The JSON record of a value. Raises Bypass for one without a text that stands for all it does."""
        try:
            return self._values.record(value, where)
        except ArchiveError as error:
            raise Bypass(Reason.CONSTANT, str(error).splitlines()[0]) from error

    def _special(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return {"node": value.name}
        if isinstance(value, HigherOrderOperator):
            raise Bypass(Reason.HIGHER_ORDER, value.name())
        if isinstance(value, (OpOverload, OpOverloadPacket)):
            return {"operator": _operator(value)}
        if isinstance(value, torch.Tensor):
            raise Bypass(Reason.TENSOR_CONSTANT, type(value).__name__)
        if isinstance(value, enum.Enum):
            return {"member": [*self._class(type(value)), value.name]}
        if isinstance(value, frozenset):
            return {"set": sorted((self.record(item, "a set") for item in value), key=repr)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: self.record(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
            return {"record": [*self._class(type(value)), fields]}
        if isinstance(value, type):
            return {"class": self._class(value)}
        if isinstance(value, functools.partial):
            return {"partial": [self.record(part, "a partial") for part in (value.func, value.args, value.keywords)]}
        if isinstance(value, types.FunctionType):
            return {"function": self._function(value)}
        if isinstance(value, torch.FunctionSchema):
            return {"schema": str(value)}
        if isinstance(value, torch.Argument):
            return {"parameter": [value.name, str(value.type), value.kwarg_only, value.is_out]}
        if isinstance(value, _NATIVE):
            return {"native": _native(value)}
        if callable(value):
            raise Bypass(Reason.PYTHON_CALLABLE, f"{type(value).__module__}.{type(value).__qualname__}")
        return None

    def _class(self, cls: type) -> list[str]:
        module = sys.modules.get(cls.__module__)
        is_ours = module is builtins or _is_ours(getattr(module, "__file__", None))
        if not is_ours or _found_at(cls.__module__, cls.__qualname__) is not cls:
            raise Bypass(Reason.PYTHON_CALLABLE, f"{cls.__module__}.{cls.__qualname__}")
        return [cls.__module__, cls.__qualname__]

    def _function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        if not _is_ours(code.co_filename):
            raise Bypass(Reason.PYTHON_CALLABLE, f"{function.__module__}.{function.__qualname__}")
        if id(function) in self._functions:
            return self._functions[id(function)]
        self._functions[id(function)] = len(self._functions)
        self._held.append(function)
        place = [code.co_filename, function.__qualname__, code.co_firstlineno]
        if _found_at(function.__module__, function.__qualname__) is function:
            return place
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = (cells, function.__defaults__, function.__kwdefaults__)
        return [*place, *(self.record(part, function.__qualname__) for part in parts)]


def method_record(describer: Describer, name: str) -> Any:
    """The record of a method of tensors that a graph calls by its name."""
    method = getattr(torch.Tensor, name, None)
    return [name, None if method is None else describer.record(method, name)]


def is_code_of_ours(function: Any) -> bool:
    """Whether a function's code is part of torch or refimpl."""
    return isinstance(function, types.FunctionType) and _is_ours(function.__code__.co_filename)


def _is_ours(file: str | None) -> bool:
    """Whether a file is part of torch or refimpl, tests excepted."""
    if file is None:
        return False
    path = Path(file)
    return path.is_relative_to(_TORCH) or (path.is_relative_to(_REFIMPL) and not path.is_relative_to(_TESTS))


def _found_at(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _operator(value: Any) -> str:
    if isinstance(value, OpOverload):
        namespace, name = value.namespace, f"{value._schema}"
    else:
        name = value._qualified_op_name
        namespace = name.split("::")[0]
    if namespace not in _OWN_NAMESPACES:
        raise Bypass(Reason.LIBRARY_OPERATOR, name)
    return name


def _native(value: Any) -> str:
    names, _ = _native_names()
    name = names.get(id(value)) or names.get(_method_id(value))
    if name is None:
        raise Bypass(Reason.PYTHON_CALLABLE, repr(value))
    return name


def _method_id(value: Any) -> Any:
    """Identifies a method of a native class, of which every read makes another object."""
    owner = getattr(value, "__self__", None)
    return (id(owner), value.__name__) if isinstance(owner, type) else None


@functools.cache
def _native_names() -> tuple[dict[Any, str], list[Any]]:
    """The names of native functions, by identity, and the functions, which must live as long: an id may be used again."""
    found: dict[Any, str] = {}
    held: list[Any] = []
    for where, owner in _OWNERS:
        for name in dir(owner):
            value = getattr(owner, name, None)
            if isinstance(value, _NATIVE):
                held.append(value)
                # A program may have put one function in the place of another: `torch.relu = torch.sin`.
                text = f"{where}.{name}" if value.__name__ == name else f"{where}.{name}={value.__qualname__}"
                found.setdefault(id(value), text)
                if (method := _method_id(value)) is not None:
                    found.setdefault(method, text)
    return found, held
