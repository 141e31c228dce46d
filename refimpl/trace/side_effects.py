"""Warns of what a trace cannot keep: globals that the traced function assigns.

Counterpart: none; torch/fx/experimental/proxy_tensor.py make_fx says nothing

The function runs once, while it is traced. The graph computes on tensors only, so that a counter in a global stays where it
is when the graph runs, and a traced tensor left in a global is one that nobody else can use. Assignments in functions that the
traced one calls are not looked at.
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
    """Within it `f` runs. Afterwards an UntracedSideEffect warning for every global that `f` itself has changed."""
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
    """Name -> line of the first assignment or deletion."""
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
    """`starts_line` is a line number up to Python 3.12, and a bool from 3.13 on."""
    line = getattr(instruction, "line_number", None)
    return line if line is not None else (instruction.starts_line if type(instruction.starts_line) is int else None)
