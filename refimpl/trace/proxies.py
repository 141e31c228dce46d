"""Upstream's interface of proxy slots (`get_proxy_slot`, `track_tensor_tree`, ...) on top of refimpl's trackers.

Counterpart: torch/fx/experimental/proxy_tensor.py PythonKeyTracer, _ProxyTensor, set_proxy_slot, get_proxy_slot, has_proxy_slot,
track_tensor, track_tensor_tree, fetch_sym_proxy, fetch_object_proxy, set_meta, extract_val, thunkify
Differs: a trace itself keeps nodes and no proxies (refimpl.trace.tracker); a proxy is made from its node on request. The node of
a symbolic number is found by its expression, so that two equal numbers share one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensorMode, active_fake_mode, is_opaque_object
from refimpl.errors import NotTracked
from refimpl.symbolic.symbols import fresh_bindings
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.metadata import snapshot
from refimpl.trace.symbols import SymbolState
from refimpl.trace.tracker import ObjectTrackerState, TrackerState

py_sym_types = SYMBOLIC_TYPES
_NO_DEFAULT = object()
# Torch's class of what a forward hands to its compiled backward. It keeps its proxy itself.
_STATE_OF_BACKWARD = "BackwardState"


def is_sym_node(node: Any) -> bool:
    """Whether the node's value is a symbolic number. Raises AssertionError for a node without meta."""
    if not hasattr(node, "meta"):
        raise AssertionError("All nodes traced with proxy_tensor should have meta")
    return isinstance(node.meta.get("val"), py_sym_types)


@dataclass
class ProxyTensor:
    """The slot of a tensor: its proxy, and its value if that does not depend on the inputs."""

    proxy: torch.fx.Proxy
    constant: torch.Tensor | None


class Thunk:
    """A value that is computed once, by the first `force()`."""

    __slots__ = ("_compute", "_value")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._value: Any = None

    def force(self) -> Any:
        if self._compute is not None:
            self._value, self._compute = self._compute(), None
        return self._value


class PythonKeyTracer(torch.fx.Tracer):
    """An fx tracer that inlines modules and returns attributes unchanged: all recording happens in the dispatcher.

    It shares graph, root and trackers with the recording mode that it was made of (`PythonKeyTracer.of`).
    """

    def __init__(self) -> None:
        self.builder = GraphBuilder()  # before fx sets root and graph, which are the builder's
        super().__init__(autowrap_modules=())  # pyright: ignore[reportArgumentType]
        self.tensor_tracker = TrackerState()
        self.symnode_tracker = SymbolState(self.builder)
        self.script_object_tracker = ObjectTrackerState()

    @classmethod
    def of(cls, recording: Any) -> PythonKeyTracer:
        """A tracer that shares all state with a running trace."""
        tracer = cls()
        tracer.builder = recording.builder
        tracer.tensor_tracker, tracer.symnode_tracker = recording.tracker, recording.symbols
        tracer.script_object_tracker = recording.objects
        return tracer

    @property
    def graph(self) -> torch.fx.Graph:
        """The builder's graph, which fx replaces when it begins to trace."""
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
        """Run the module's forward: modules are inlined."""
        return forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, torch.fx.Proxy]) -> Any:
        """The attribute itself: no proxy is made for it."""
        return attr_val

    def create_arg(self, a: Any) -> Any:
        """Parameters become get_attr nodes, under the name they have in the root or a new one; constant SymInts become ints.

        Raises AssertionError for a symbolic number that is not constant: callers pass its proxy instead.
        """
        if isinstance(a, torch.nn.Parameter):
            name = next((name for name, known in self.root.named_parameters() if known is a), None)
            return self.builder.constant(a) if name is None else self.create_node("get_attr", name, (), {})
        if not isinstance(a, py_sym_types):
            return super().create_arg(a)
        value = a.node.constant
        assert value is not None, f"{a} is not constant\n  expected: its proxy"
        return value

    def unwrap_proxy(self, e: Any) -> Any:
        """The proxy of a tensor, symbolic number or script object; the value itself if it is not tracked."""
        if isinstance(e, torch.Tensor):
            return get_proxy_slot(e, self, e, lambda known: known.proxy)
        if isinstance(e, py_sym_types):
            return get_proxy_slot(e, self, e, lambda thunk: thunk.force())
        return get_proxy_slot(e, self, e) if is_opaque_object(e) else e

    def proxy_of(self, node: torch.fx.Node) -> torch.fx.Proxy:
        """An fx proxy of a node."""
        return torch.fx.Proxy(node, self)


# ------------------------------------------------------------------------------------------------------------- slots


def set_proxy_slot(obj: Any, tracer: PythonKeyTracer, proxy: Any) -> None:
    """Track `obj` by `proxy`: a ProxyTensor for a tensor, a Thunk for a symbolic number, a proxy for a script object.

    A tensor's slot is overwritten, because in-place ops give a tensor a new node. A number keeps its first slot, so that the size
    of an input is never read from a later tensor.
    """
    if isinstance(obj, torch.Tensor):
        assert isinstance(proxy, ProxyTensor), f"a {type(proxy)} as the slot of a tensor\n  expected: a ProxyTensor"
        tracer.tensor_tracker.track(obj, proxy.proxy.node, constant=proxy.constant)
    elif isinstance(obj, py_sym_types):
        tracer.symnode_tracker.track_lazily(obj, lambda: proxy.force().node)
    else:
        assert isinstance(proxy, torch.fx.Proxy), (
            f"a {type(proxy)} as the slot of a script object\n  expected: a torch.fx.Proxy"
        )
        tracer.script_object_tracker.track(obj, proxy.node)


def get_proxy_slot(
    obj: Any, tracer: PythonKeyTracer, default: Any = _NO_DEFAULT, transform: Callable[[Any], Any] = lambda slot: slot
) -> Any:
    """`transform(slot)` of a tracked object; `default` if it is not tracked. Raises NotTracked if no default is given."""
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
    """`f(*args, **kwargs)`, computed once, by the first `force()`."""
    return Thunk(lambda: f(*args, **kwargs))


def fetch_sym_proxy(tracer: PythonKeyTracer) -> Callable[[Any], Any]:
    """A function that maps a symbolic number to its proxy, or to a plain number if it is constant. It may raise NotTracked."""

    def fetch(number: Any) -> Any:
        node = tracer.symnode_tracker.node_of(number)
        return tracer.proxy_of(node) if isinstance(node, torch.fx.Node) else node

    return fetch


def fetch_object_proxy(tracer: PythonKeyTracer, t: Any) -> Any:
    """The slot of a tensor, symbolic number or script object; the value itself if it is not tracked."""
    return get_proxy_slot(t, tracer, t)


# ---------------------------------------------------------------------------------------------------------- tracking


def extract_val(val: Any, include_real: bool = False) -> Any:
    """The `meta["val"]` of a value: a fake snapshot of a tensor, None for a tensor without strides, else the value itself."""
    if isinstance(val, (list, tuple)):
        return type(val)([extract_val(item) for item in val])
    if isinstance(val, dict):
        return {key: extract_val(item) for key, item in val.items()}
    return snapshot(val, FakeTensorMode(allow_fallback_kernels=True)) if isinstance(val, torch.Tensor) else val


def set_meta(proxy: torch.fx.Proxy, val: Any) -> torch.fx.Proxy:
    """Write `val` and `tensor_meta` into the proxy's node. Returns the proxy."""
    tracer = proxy.tracer
    builder = tracer.builder if isinstance(tracer, PythonKeyTracer) else GraphBuilder()
    builder.describe(proxy.node, val)
    return proxy


def track_tensor(
    tensor: torch.Tensor, proxy: torch.fx.Proxy, *, constant: torch.Tensor | None, tracer: PythonKeyTracer
) -> None:
    """Track the tensor, its sizes, strides and offset by the proxy. A symbolic size only gets a node once it is used."""
    tracer.symnode_tracker.track_sizes(tensor, proxy.node)
    set_proxy_slot(tensor, tracer, ProxyTensor(proxy, constant))


def track_tensor_tree(inner_res: Any, proxy_res: Any, *, constant: Any, tracer: PythonKeyTracer) -> Any:
    """Track all tensors, symbolic numbers and script objects in a result: elements of lists, tuples and dicts by `proxy[index]`.

    Also writes `unbacked_bindings` for fresh unbacked symbols of the active fake mode. Returns `inner_res`.
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
        assert constant is None, (
            "got constants for the tensors of a dict\n  expected: constants in a list or tuple only"
        )
        for key, item in value.items():
            _track(item, _element(proxy, key), None, tracer)
    elif is_opaque_object(value):
        set_meta(proxy, value)
        set_proxy_slot(value, tracer, proxy)
    elif type(value).__name__ == _STATE_OF_BACKWARD and isinstance(proxy, torch.fx.Proxy):
        proxy.node.meta["val"] = value
        value.proxy = proxy


def _element(proxy: Any, key: Any) -> Any:
    """A new proxy if `proxy` is one; an element if it is a list of proxies."""
    return proxy[key]


def _bind_fresh_symbols(value: Any, proxy: torch.fx.Proxy) -> None:
    fake_mode = active_fake_mode()
    if fake_mode is not None and fake_mode.shape_env is not None:
        bindings = fresh_bindings(fake_mode.shape_env, value)
        if bindings:
            proxy.node.meta["unbacked_bindings"] = bindings
