"""Prints the constants that guards compare with, and tells which dict keys guards compare by `id`.

Counterpart: torch/_dynamo/utils.py enum_repr, const_repr, dict_keys_repr, key_is_id, key_to_id
Differs: a class is shown by its own name, and not by that of its metaclass.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from types import BuiltinFunctionType, MethodWrapperType
from typing import Any

import torch

# Prefix of globals that hold a dict key: `__dict_key_0`.
GLOBAL_KEY_PREFIX = "__dict_key"


def enum_repr(value: Enum, local: bool) -> str:
    """A member of an enum as Python source: `L["Color"].RED` if the class is a local variable, `G["Color"].RED` if global."""
    scope = "L" if local else "G"
    return f'{scope}["{type(value).__name__}"].{value.name}'


def const_repr(x: Any, *, local: bool) -> str:
    """A constant as a guard prints it, in nested lists and tuples as well. `local`: whether enum classes are local variables."""
    match x:
        case list():
            return dict_keys_repr(x, local=local)
        case tuple():
            items = [const_repr(item, local=local) for item in x]
            return f"({','.join(items)}{',' if len(items) == 1 else ''})"
        case Enum():
            return enum_repr(x, local=local)
        case BuiltinFunctionType():
            return x.__name__
        case type():
            return x.__qualname__ if x.__module__ == "builtins" else f"{x.__module__}.{x.__qualname__}"
        case _:
            return repr(x)


def dict_keys_repr(const_keys: Iterable[Any], *, local: bool) -> str:
    """The keys of a dict as a printed list, in order."""
    return "[" + ",".join(const_repr(key, local=local) for key in const_keys) + "]"


def key_is_id(k: Any) -> bool:
    """Whether guards compare a key by its `id`: a tensor, a module or a method wrapper such as `x.__add__`."""
    return isinstance(k, MethodWrapperType | torch.nn.Module | torch.Tensor)


def key_to_id(value: Iterable[Any]) -> list[Any]:
    """The keys of a dict, with the `id` in place of those that guards compare by it."""
    return [id(key) if key_is_id(key) else key for key in value]
