"""Operators that call a graph with gradients or autocast switched on or off.

Counterpart: torch/_higher_order_ops/wrap.py wrap_with_set_grad_enabled, wrap_with_autocast
Differs: plain functions, which capture and tracers trace through; the state is restored also if the graph raises. Unlike
upstream's they use nothing of torch's capture.
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

# None if nothing is noted; else the grad mode of the innermost region, or an empty tuple outside of regions.
_NOTED: contextvars.ContextVar[tuple[bool, ...] | None] = contextvars.ContextVar(
    "refimpl_noted_grad_modes", default=None
)


@fx.has_side_effect
def wrap_with_set_grad_enabled(enable_grad: bool, wrapped_func: Callable[..., Any], *args: Any) -> Any:
    """`wrapped_func(*args)` with gradients on or off."""
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
    """`wrapped_func(*args)` under `torch.autocast(device_type, dtype, enabled, cache_enabled)`."""
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        if fx_traceback.has_preserved_node_meta():
            return _interpreted(wrapped_func, args, ())
        return wrapped_func(*args)


REGION_OPERATORS: tuple[Any, ...] = (wrap_with_set_grad_enabled, wrap_with_autocast)


@contextlib.contextmanager
def noting_grad_modes() -> Iterator[None]:
    """A context in which a trace with preserved node meta notes the grad mode of the region of each node."""
    token = _NOTED.set(())
    try:
        yield
    finally:
        _NOTED.reset(token)


def _interpreted(wrapped_func: Callable[..., Any], args: tuple[Any, ...], asked: tuple[bool, ...]) -> Any:
    """Run a graph node by node, so that the nodes of the trace get the meta of its nodes."""
    if not isinstance(wrapped_func, fx.GraphModule):
        return wrapped_func(*args)
    around = _NOTED.get()
    token = _NOTED.set(None if around is None else asked or around)
    try:
        return _Interpreter(wrapped_func).run(*args)
    finally:
        _NOTED.reset(token)


class _Interpreter(fx.Interpreter):
    """Notes the grad mode of a node in the meta that the trace copies."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        noted, meta = _NOTED.get(), fx_traceback.get_current_meta()
        if noted and target not in REGION_OPERATORS:
            meta["custom"] = {**meta.get("custom", {}), GRADIENTS: noted[-1]}
        return super().call_function(target, args, kwargs)
