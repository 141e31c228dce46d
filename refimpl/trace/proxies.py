"""Proxies, for callers that know upstream's tracer: a view of a trace in which nodes are fx proxies.

Counterpart: torch/fx/experimental/proxy_tensor.py PythonKeyTracer, _ProxyTensor, set_proxy_slot, get_proxy_slot, has_proxy_slot,
track_tensor, track_tensor_tree, fetch_sym_proxy, fetch_object_proxy, set_meta, extract_val, thunkify
Differs: the trace itself has no proxies (refimpl.trace.tracker); one is made here of a node when it is asked for. A symbolic
number's node is found by its expression, so that two equal numbers have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import FakeTensorMode, active_fake_mode, is_opaque_object
from refimpl.errors import NotTracked
from refimpl.symbolic.unbacked import fresh_bindings
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.metadata import snapshot
from refimpl.trace.symbols import SYMBOLIC_TYPES, SymbolState
from refimpl.trace.tracker import ObjectTrackerState, TrackerState

py_sym_types = SYMBOLIC_TYPES
_NO_DEFAULT = object()


def is_sym_node(node: Any) -> bool:
    """Whether the node's value is a symbolic number. Raises AssertionError for a node without meta."""
    if not hasattr(node, "meta"):
        raise AssertionError("All nodes traced with proxy_tensor should have meta")
    return isinstance(node.meta.get("val"), py_sym_types)


@dataclass
class ProxyTensor:
    """What is known of a tensor: its proxy, and its value where that does not depend on the inputs."""

    proxy: torch.fx.Proxy
    constant: torch.Tensor | None


class Thunk:
    """A value that is worked out once, when it is first asked for."""

    __slots__ = ("_compute", "_value")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._value: Any = None

    def force(self) -> Any:
        if self._compute is not None:
            self._value, self._compute = self._compute(), None
        return self._value


class PythonKeyTracer(torch.fx.Tracer):
    """An fx tracer that leaves modules and attributes as they are: what a function does is seen by the dispatcher alone.

    It shares graph, root and trackers with the recording mode that writes to it (`RecordingMode.into`), or with the trace
    that it is a view of (`PythonKeyTracer.of`).
    """

    def __init__(self) -> None:
        self.builder = GraphBuilder()  # before fx sets root and graph, which are the builder's
        super().__init__(autowrap_modules=())  # pyright: ignore[reportArgumentType]
        self.tensor_tracker = TrackerState()
        self.symnode_tracker = SymbolState(self.builder)
        self.script_object_tracker = ObjectTrackerState()

    @classmethod
    def of(cls, recording: Any) -> PythonKeyTracer:
        """A view of a trace under way."""
        tracer = cls()
        tracer.builder = recording.builder
        tracer.tensor_tracker, tracer.symnode_tracker = recording.tracker, recording.symbols
        tracer.script_object_tracker = recording.objects
        return tracer

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph under way: the builder's, which fx replaces when it begins to trace."""
        return self.builder.graph

    @graph.setter
    def graph(self, graph: torch.fx.Graph) -> None:
        self.builder.graph = graph

    @property
    def root(self) -> torch.nn.Module:
        """The module that owns the graph's attributes."""
        return self.builder.root

    @root.setter
    def root(self, root: torch.nn.Module) -> None:
        self.builder.root = root

    def call_module(self, m: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Modules are inlined."""
        return forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, torch.fx.Proxy]) -> Any:
        """Attributes are what they are."""
        return attr_val

    def create_arg(self, a: Any) -> Any:
        """Parameters by their name under the root, or a new name; numbers that are constants as such.

        Raises AssertionError for a symbolic number that is none: it has to be a proxy by now.
        """
        if isinstance(a, torch.nn.Parameter):
            name = next((name for name, known in self.root.named_parameters() if known is a), None)
            return self.builder.constant(a) if name is None else self.create_node("get_attr", name, (), {})
        if not isinstance(a, py_sym_types):
            return super().create_arg(a)
        value = a.node.constant
        assert value is not None, f"{a} has no constant value: expected a proxy in its place"
        return value

    def unwrap_proxy(self, e: Any) -> Any:
        """The proxy of a tensor, symbolic number or object; what has none stands for itself."""
        if isinstance(e, torch.Tensor):
            return get_proxy_slot(e, self, e, lambda known: known.proxy)
        if isinstance(e, py_sym_types):
            return get_proxy_slot(e, self, e, lambda thunk: thunk.force())
        return get_proxy_slot(e, self, e) if is_opaque_object(e) else e

    def proxy_of(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """fx's view of a node."""
        return torch.fx.Proxy(node, self)


# ------------------------------------------------------------------------------------------------------------- slots


def set_proxy_slot(obj: Any, tracer: PythonKeyTracer, proxy: Any) -> None:
    """From now on `obj` is what the proxy gives: a ProxyTensor for a tensor, a Thunk for a number, a proxy for an object.

    A tensor's slot is overwritten, since in-place ops change it; a number keeps what it had first, so that a size that an input
    has is never read from a later tensor.
    """
    if isinstance(obj, torch.Tensor):
        assert isinstance(proxy, ProxyTensor), f"the slot of a tensor holds a ProxyTensor, not a {type(proxy)}"
        tracer.tensor_tracker.track(obj, proxy.proxy.node, constant=proxy.constant)
    elif isinstance(obj, py_sym_types):
        tracer.symnode_tracker.track_lazily(obj, lambda: proxy.force().node)
    else:
        assert isinstance(proxy, torch.fx.Proxy), f"the slot of an object holds a proxy, not a {type(proxy)}"
        tracer.script_object_tracker.track(obj, proxy.node)


def get_proxy_slot(
    obj: Any, tracer: PythonKeyTracer, default: Any = _NO_DEFAULT, transform: Callable[[Any], Any] = lambda slot: slot
) -> Any:
    """What is in the slot, through `transform`; `default` for an object that is not tracked, which is NotTracked without one."""
    slot: Any = None
    if isinstance(obj, torch.Tensor):
        tracked = tracer.tensor_tracker.find(obj)
        slot = None if tracked is None else ProxyTensor(tracer.proxy_of(tracked.node), tracked.constant)
    elif isinstance(obj, py_sym_types):
        if tracer.symnode_tracker.can_find(obj):
            slot = Thunk(lambda: fetch_sym_proxy(tracer)(obj))
    else:
        node = tracer.script_object_tracker.find(obj)
        slot = None if node is None else tracer.proxy_of(node)
    if slot is not None:
        return transform(slot)
    if default is _NO_DEFAULT:
        raise NotTracked(obj)
    return default


def has_proxy_slot(obj: torch.Tensor, tracer: PythonKeyTracer) -> bool:
    """Whether the tensor is tracked."""
    return bool(get_proxy_slot(obj, tracer, False, lambda _: True))


def thunkify(tracer: PythonKeyTracer, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Thunk:
    """`f(*args, **kwargs)`, worked out once, when it is first asked for."""
    return Thunk(lambda: f(*args, **kwargs))


def fetch_sym_proxy(tracer: PythonKeyTracer) -> Callable[[Any], Any]:
    """A function from symbolic numbers to their proxies, or to plain numbers where they are known. Raises NotTracked."""

    def fetch(number: Any) -> Any:
        node = tracer.symnode_tracker.node_of(number)
        return tracer.proxy_of(node) if isinstance(node, torch.fx.Node) else node

    return fetch


def fetch_object_proxy(tracer: PythonKeyTracer, t: Any) -> Any:
    """The slot of a tensor, number or object; what has none stands for itself."""
    return get_proxy_slot(t, tracer, t)


# ---------------------------------------------------------------------------------------------------------- tracking


def extract_val(val: Any, include_real: bool = False) -> Any:
    """What `meta["val"]` says of a value: a snapshot of tensors, everything else as it is. None for a tensor without strides."""
    if isinstance(val, (list, tuple)):
        return type(val)([extract_val(item) for item in val])
    if isinstance(val, dict):
        return {key: extract_val(item) for key, item in val.items()}
    return snapshot(val, FakeTensorMode(allow_fallback_kernels=True)) if isinstance(val, torch.Tensor) else val


def set_meta(proxy: torch.fx.Proxy, val: Any) -> torch.fx.Proxy:
    """Write what the proxy's value is into its node's meta. Returns the proxy."""
    tracer = proxy.tracer
    builder = tracer.builder if isinstance(tracer, PythonKeyTracer) else GraphBuilder()
    builder.describe(proxy.node, val)
    return proxy


def track_tensor(
    tensor: torch.Tensor, proxy: torch.fx.Proxy, *, constant: torch.Tensor | None, tracer: PythonKeyTracer
) -> None:
    """The tensor, its sizes, strides and offset are what the proxy gives. A size has a node of its own once it is used."""
    tracer.symnode_tracker.track_sizes(tensor, proxy.node)
    set_proxy_slot(tensor, tracer, ProxyTensor(proxy, constant))


def track_tensor_tree(inner_res: Any, proxy_res: Any, *, constant: Any, tracer: PythonKeyTracer) -> Any:
    """All tensors, numbers and objects in a result are what the proxy, or the proxy of their place in it, gives.

    Elements of lists, tuples and dicts have `proxy[index]`; other leaves are left alone. Says where fresh unbacked numbers of the
    fake mode that is on stand in the result. Returns `inner_res`.
    """
    if isinstance(proxy_res, torch.fx.Proxy):
        _bind_fresh_symbols(inner_res, proxy_res)
    _track(inner_res, proxy_res, constant, tracer)
    return inner_res


def _track(value: Any, proxy: Any, constant: Any, tracer: PythonKeyTracer) -> None:
    is_tensor = isinstance(value, torch.Tensor)
    is_container = isinstance(value, (tuple, list, dict))
    if isinstance(proxy, torch.fx.Proxy) and (is_tensor or is_container or isinstance(value, py_sym_types)):
        set_meta(proxy, value)
    if is_tensor:
        track_tensor(value, proxy, constant=constant, tracer=tracer)
    elif isinstance(value, py_sym_types):
        set_proxy_slot(value, tracer, thunkify(tracer, lambda: proxy))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _track(item, _element(proxy, index), None if constant is None else constant[index], tracer)
    elif isinstance(value, dict):
        assert constant is None, "constants in a dict are not propagated"
        for key, item in value.items():
            _track(item, _element(proxy, key), None, tracer)
    elif is_opaque_object(value):
        set_meta(proxy, value)
        set_proxy_slot(value, tracer, proxy)


def _element(proxy: Any, key: Any) -> Any:
    """Of a proxy, another proxy; of a list of proxies, its element."""
    return proxy[key]


def _bind_fresh_symbols(value: Any, proxy: torch.fx.Proxy) -> None:
    fake_mode = active_fake_mode()
    if fake_mode is not None and fake_mode.shape_env is not None:
        bindings = fresh_bindings(fake_mode.shape_env, value)
        if bindings:
            proxy.node.meta["unbacked_bindings"] = bindings
