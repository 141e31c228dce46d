"""The public names of upstream's proxy_tensor module, gathered from the modules of refimpl that define them.

Counterpart: torch/fx/experimental/proxy_tensor.py __all__, and other names that PyTorch imports from it
"""

from __future__ import annotations

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
from refimpl.upstream.dispatch_trace import ProxyTorchDispatchMode, dispatch_trace, fake_signature, wrap_key
from refimpl.upstream.interpreters import DecompositionInterpreter, selective_decompose
from refimpl.upstream.isolated import get_isolated_graphmodule, wrapper_and_args_for_make_fx

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
