"""The steps of upstream's make_fx as separate functions: a tracer, a mode that records into it, a wrapped function.

Counterpart: torch/fx/experimental/proxy_tensor.py dispatch_trace, wrap_key, fake_signature, ProxyTorchDispatchMode
Differs: refimpl's `make_fx` does not use these functions (refimpl.trace.tracing). No node has to be removed or merged
afterwards: an unused symbolic size has no node, and equal ones share a node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import LazyGraphModule, active_fake_mode, is_opaque_object, pytree
from refimpl.errors import NoTraceRunning
from refimpl.trace.modes import disable_proxy_modes_tracing
from refimpl.trace.options import DecompositionTable, TraceOptions
from refimpl.trace.proxies import PythonKeyTracer, fetch_sym_proxy, py_sym_types, track_tensor_tree
from refimpl.trace.recording_mode import RecordingMode


class ProxyTorchDispatchMode(RecordingMode):
    """A recording mode that writes to a tracer's graph. Uses the fake mode that is active when it is created, if any."""

    def __init__(
        self,
        tracer: PythonKeyTracer,
        tracing_mode: str,
        pre_dispatch: bool = False,
        _allow_fake_constant: bool = False,
        _error_on_data_dependent_ops: bool = True,
        decomposition_table: DecompositionTable | None = None,
    ) -> None:
        options = TraceOptions(
            decompositions=decomposition_table or {},
            tracing_mode=tracing_mode,
            pre_dispatch=pre_dispatch,
            allow_fake_constant=_allow_fake_constant,
            error_on_data_dependent_ops=_error_on_data_dependent_ops,
        )
        super().__init__(tracer.builder, options, active_fake_mode())
        self._tracer = tracer
        self.tracker, self.symbols, self.objects = (
            tracer.tensor_tracker,
            tracer.symnode_tracker,
            tracer.script_object_tracker,
        )

        self.enable_tracing = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records the call, unless `enable_tracing` is off."""
        if not self.enable_tracing:
            return func(*args, **kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    @property
    def tracer(self) -> PythonKeyTracer:
        """The tracer the mode was made for."""
        return self._tracer


def fake_signature(fn: Callable[..., Any], nargs: int) -> Callable[..., Any]:
    """`fn` with exactly `nargs` positional parameters arg0, arg1, ..., because fx's tracer reads the signature."""
    names = ", ".join(f"arg{index}" for index in range(nargs))
    return eval(f"lambda {names}: fn({names})", {"fn": fn})


def wrap_key(
    f: Callable[..., Any], tensors: tuple[Any, ...], tracer: PythonKeyTracer, pre_dispatch: bool
) -> Callable[..., Any]:
    """A function that takes proxies, tracks `tensors` by them, runs `f` on `tensors`, and returns the proxies of the result.

    Call it inside of a recording mode that writes to `tracer`. Raises AssertionError if the numbers of proxies and tensors
    differ, and NoTraceRunning without a recording mode.
    """
    leaves, _ = pytree.tree_flatten(tensors)

    @functools.wraps(f)
    def wrapped(*proxies: Any) -> Any:
        flat_proxies, _ = pytree.tree_flatten(proxies)
        assert len(flat_proxies) == len(leaves), f"{len(flat_proxies)} proxies for {len(leaves)} inputs"
        with disable_proxy_modes_tracing() as mode:
            if mode is None:
                raise NoTraceRunning(f"wrap_key({f!r})")
            track_tensor_tree(leaves, flat_proxies, constant=None, tracer=tracer)
        result = f(*tensors)
        return pytree.tree_map(_proxy_or_itself(tracer), result)

    return wrapped


def _proxy_or_itself(tracer: PythonKeyTracer) -> Callable[[Any], Any]:
    def unwrap(value: Any) -> Any:
        if isinstance(value, py_sym_types):
            return fetch_sym_proxy(tracer)(value)
        return tracer.unwrap_proxy(value) if isinstance(value, torch.Tensor) or is_opaque_object(value) else value

    return unwrap


def dispatch_trace(
    root: torch.nn.Module | Callable[..., Any], tracer: torch.fx.Tracer, concrete_args: Any = None
) -> torch.fx.GraphModule:
    """Trace `root` with `tracer` into a GraphModule named after `root`."""
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, torch.nn.Module) else getattr(root, "__name__", type(root).__name__)
    return LazyGraphModule(tracer.root, graph, name)
