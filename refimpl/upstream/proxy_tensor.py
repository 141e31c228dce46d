"""The public names of upstream's proxy_tensor module, gathered from the modules of refimpl that define them.

Only make_fx inside another trace, and of a call with keyword arguments, is defined here.

Counterpart: torch/fx/experimental/proxy_tensor.py __all__, and other names that PyTorch imports from it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from refimpl._torch import pytree
from refimpl.trace.make_fx import make_fx
from refimpl.trace.modes import (
    decompose,
    disable_proxy_modes_tracing,
    get_innermost_proxy_mode,
    get_proxy_mode,
    get_torch_dispatch_modes,
    handle_sym_dispatch,
    maybe_disable_thunkify,
    maybe_enable_thunkify,
    maybe_handle_decomp,
)
from refimpl.trace.options import DecompositionTable
from refimpl.trace.proxies import (
    ProxyTensor,
    PythonKeyTracer,
    extract_val,
    fetch_object_proxy,
    fetch_sym_proxy,
    get_proxy_slot,
    has_proxy_slot,
    is_sym_node,
    py_sym_types,
    set_meta,
    set_proxy_slot,
    thunkify,
    track_tensor,
    track_tensor_tree,
)
from refimpl.trace.recording_mode import paused_recordings
from refimpl.upstream.dispatch_trace import ProxyTorchDispatchMode, dispatch_trace, fake_signature, wrap_key
from refimpl.upstream.interpreters import DecompositionInterpreter, selective_decompose

__all__ = [
    "DecompositionInterpreter",
    "ProxyTensor",
    "ProxyTorchDispatchMode",
    "PythonKeyTracer",
    "decompose",
    "disable_proxy_modes_tracing",
    "dispatch_trace",
    "extract_val",
    "fake_signature",
    "fetch_object_proxy",
    "fetch_sym_proxy",
    "get_innermost_proxy_mode",
    "get_isolated_graphmodule",
    "get_proxy_mode",
    "get_proxy_slot",
    "get_torch_dispatch_modes",
    "handle_sym_dispatch",
    "has_proxy_slot",
    "is_sym_node",
    "make_fx",
    "maybe_disable_thunkify",
    "maybe_enable_thunkify",
    "maybe_handle_decomp",
    "py_sym_types",
    "selective_decompose",
    "set_meta",
    "set_proxy_slot",
    "thunkify",
    "track_tensor",
    "track_tensor_tree",
    "wrap_key",
    "wrapper_and_args_for_make_fx",
]


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _OfLeaves(Generic[R]):
    """A function that takes its arguments as one list of leaves. `spec` is the pytree of (args, kwargs)."""

    function: Callable[..., R]
    spec: pytree.TreeSpec

    def __call__(self, leaves: list[object]) -> R:
        positional, named = self.spec.unflatten(leaves)
        return self.function(*positional, **named)


def wrapper_and_args_for_make_fx(
    func: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Callable[[list[object]], R], list[object]]:
    """A call without keyword arguments, which make_fx does not take: a function of one list of leaves, and that list."""
    spec = pytree.tree_structure((args, kwargs))
    return _OfLeaves(func, spec), pytree.tree_leaves((args, kwargs))


def get_isolated_graphmodule(
    func: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    tracing_mode: str = "real",
    decomposition_table: DecompositionTable | None = None,
) -> torch.fx.GraphModule:
    """Trace `func(*args, **kwargs)` into a graph that takes one list of all leaves of `args` and `kwargs`.

    A trace that is active records nothing of this. Raises what `make_fx` raises.
    """
    with paused_recordings():
        call, leaves = wrapper_and_args_for_make_fx(func, args, kwargs)
        trace = make_fx(call, decomposition_table=decomposition_table, tracing_mode=tracing_mode)
        return trace(leaves)
