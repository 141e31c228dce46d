"""Warns about globals that the traced function assigns, because the graph will not assign them again.

Counterpart: none; torch/fx/experimental/proxy_tensor.py make_fx does not warn

The function runs once, while it is traced, and the graph only computes tensors. So a global counter does not count the graph's
runs, and a traced tensor in a global has no data after the trace. Functions that the traced function calls are not checked.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from refimpl.errors import UntracedSideEffect

_ABSENT = object()


@contextlib.contextmanager
def warned_of_globals(f: Callable[..., Any]) -> Iterator[None]:
    """A block in which `f` runs. Warns afterwards (UntracedSideEffect) about every global that `f` itself has changed."""
    function = _function_of(f)
    stores = {} if function is None else _stored_globals(function)
    if function is None or not stores:
        yield
        return
    before = {name: function.__globals__.get(name, _ABSENT) for name in stores}
    yield
    for name, line in stores.items():
        after = function.__globals__.get(name, _ABSENT)
        if after is not before[name]:
            place = f"{function.__code__.co_filename}:{line}"
            warnings.warn(UntracedSideEffect(name, place, is_tensor=isinstance(after, torch.Tensor)), stacklevel=5)


def _function_of(f: Callable[..., Any]) -> FunctionType | None:
    target: Any = f.forward if isinstance(f, torch.nn.Module) else inspect.unwrap(f)
    target = getattr(target, "__func__", target)
    return target if isinstance(target, FunctionType) else None


def _stored_globals(function: FunctionType) -> dict[str, int]:
    """Names of globals that the function assigns or deletes, each with the line of the first time."""
    if not function.__code__.co_names:
        return {}
    stored: dict[str, int] = {}
    line = function.__code__.co_firstlineno
    for instruction in dis.get_instructions(function.__code__):
        line = _line_of(instruction) or line
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.setdefault(instruction.argval, line)
    return stored


def _line_of(instruction: dis.Instruction) -> int | None:
    """The line of an instruction: `starts_line` up to Python 3.12, `line_number` from 3.13 on."""
    line = getattr(instruction, "line_number", None)
    return line if line is not None else (instruction.starts_line if type(instruction.starts_line) is int else None)
