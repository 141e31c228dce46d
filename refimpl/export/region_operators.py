"""Operators that run a graph in another state of torch: gradients on or off, casts on or off.

Counterpart: torch/_higher_order_ops/wrap.py wrap_with_set_grad_enabled, wrap_with_autocast
Differs: plain functions, which capture and tracers run through; the state is put back also where the graph raises. Nothing of
torch's capture runs, which upstream's operators ask not to look into them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

GRADIENTS = "refimpl_gradients"  # key in `custom` of a node's meta, while `noting_grad_modes` is on

# None where nothing is noted; else the grad mode that the innermost region asks for, or nothing outside of regions.
_NOTED: contextvars.ContextVar[tuple[bool, ...] | None] = contextvars.ContextVar(
    "refimpl_noted_grad_modes", default=None
)


@fx.has_side_effect
def wrap_with_set_grad_enabled(enable_grad: bool, wrapped_func: Callable[..., Any], *args: Any) -> Any:
    """What `wrapped_func(*args)` gives with gradients on or off."""
    with torch.set_grad_enabled(enable_grad):
        if fx_traceback.has_preserved_node_meta():
            return _interpreted(wrapped_func, args, (enable_grad,))
        return wrapped_func(*args)


@fx.has_side_effect
def wrap_with_autocast(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    wrapped_func: Callable[..., Any],
    *args: Any,
) -> Any:
    """What `wrapped_func(*args)` gives inside of `torch.autocast(device_type, dtype, enabled, cache_enabled)`."""
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        if fx_traceback.has_preserved_node_meta():
            return _interpreted(wrapped_func, args, ())
        return wrapped_func(*args)


REGION_OPERATORS: tuple[Any, ...] = (wrap_with_set_grad_enabled, wrap_with_autocast)


@contextlib.contextmanager
def noting_grad_modes() -> Iterator[None]:
    """Within it a trace that keeps the meta of nodes notes which grad mode a region has asked for."""
    token = _NOTED.set(())
    try:
        yield
    finally:
        _NOTED.reset(token)


def _interpreted(wrapped_func: Callable[..., Any], args: tuple[Any, ...], asked: tuple[bool, ...]) -> Any:
    """What nodes of the graph say of their origin goes on to those of the trace."""
    if not isinstance(wrapped_func, fx.GraphModule):
        return wrapped_func(*args)
    around = _NOTED.get()
    token = _NOTED.set(None if around is None else asked or around)
    try:
        return _Interpreter(wrapped_func).run(*args)
    finally:
        _NOTED.reset(token)


class _Interpreter(fx.Interpreter):
    """Says to the trace in which grad mode a node is."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        noted, meta = _NOTED.get(), fx_traceback.get_current_meta()
        if noted and target not in REGION_OPERATORS:
            meta["custom"] = {**meta.get("custom", {}), GRADIENTS: noted[-1]}
        return super().call_function(target, args, kwargs)
