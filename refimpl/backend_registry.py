"""Backends by name.

Counterpart: torch/_dynamo/backends/registry.py
Differs: a name may also be `module:function`, which is imported; entry points of installed packages are not searched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from refimpl.errors import BadParameter

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
InputGuard = Callable[[Sequence[Any]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraph:
    """The facts about a graph that capture and a backend exchange, in `graph_module.meta["captured"]`."""

    fake_inputs: list[Any] | None
    """Fake tensors and symbolic numbers to trace with, in place of the example inputs; None if no size is a symbol."""
    is_followed: bool
    """Whether the program continues after the graph. It may then write to leaf tensors before the backward runs."""
    input_guards: list[InputGuard] = field(default_factory=list[InputGuard])
    """Conditions on the inputs, added by the backend. If one fails in a later call, the program is captured again."""

    def __deepcopy__(self, memo: Any) -> CapturedGraph:
        """The same fakes: a copy of a graph is traced with the same symbols, and fakes with symbolic sizes cannot be copied."""
        return replace(self, input_guards=[*self.input_guards])


_BACKENDS: dict[str, str | Backend] = {}
_BUILT_IN = "refimpl.backends"  # importing it registers refimpl's own backends; it is imported at the first lookup


def register_backend(name: str, backend: str | Backend) -> None:
    """Register a backend under a name. A string `module:function` is imported when the name is used.

    Raises BadParameter if another backend has the name.
    """
    importlib.import_module(_BUILT_IN)
    if _BACKENDS.get(name, backend) != backend:
        raise BadParameter(seen=f"register_backend({name!r}) a second time", expected="a name that is free")
    _BACKENDS[name] = backend


def list_backends() -> list[str]:
    """The sorted names of all backends."""
    importlib.import_module(_BUILT_IN)
    return sorted(_BACKENDS)


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend with this name, or at `module:function`. A callable is returned unchanged.

    Raises BadParameter, which lists the names.
    """
    if not isinstance(backend, str):
        return backend
    importlib.import_module(_BUILT_IN)
    named = _BACKENDS.get(backend, backend)
    if not isinstance(named, str):
        return named
    module_name, separator, attribute = named.partition(":")
    expected = f"one of {', '.join(list_backends())}, `module:function`, or a callable of (GraphModule, example inputs)"
    if not separator:
        raise BadParameter(seen=f"backend={backend!r}", expected=expected)
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise BadParameter(seen=f"backend={backend!r}: {error}", expected=expected) from error
    if not callable(found):
        raise BadParameter(seen=f"backend={backend!r}, a {type(found).__name__}", expected=expected)
    imported: Any = found
    return imported
