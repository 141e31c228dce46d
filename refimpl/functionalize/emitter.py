"""Adds nodes to the functional graph, with `meta["val"]` and the other `meta` of the given node they are made for.

Counterpart: none; torch's functionalization runs inside a trace, whose proxy mode writes the nodes
Differs: most nodes are copies of given ones and keep their `val`; the op runs on fake tensors only if an argument has other
strides, or another base, than in the given graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor, FakeTensorMode, OpOverload
from refimpl.errors import RefimplError
from refimpl.functionalize.geometry import is_same_layout
from refimpl.functionalize.schemas import effects_of, nodes_in
from refimpl.trace.fake_kernels import FakeKernelsState
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.layouts import is_same_shape
from refimpl.trace.symbols import SymbolState
from refimpl.trace.tracker import TrackerState

VALUE_META_KEYS = frozenset({"val", "tensor_meta", "unbacked_bindings", "eager_input_vals"})
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class EmitterState:
    """Mutable; one per pass. `origin` is the given node for which new nodes are currently made."""

    def __init__(self, fake_mode: FakeTensorMode | None) -> None:
        self.builder = GraphBuilder()
        self.builder.fake_mode = fake_mode
        self.symbols = SymbolState(self.builder)
        self.origin: torch.fx.Node | None = None
        self.attributes: dict[str, Any] = {}
        self.extras: set[torch.fx.Node] = set()  # views and nodes that the pass adds; removed if unused
        self._kernels = None if fake_mode is None else FakeKernelsState(fake_mode, is_caching=False)
        self._tracker = TrackerState()
        self._is_symbolic = fake_mode is not None and fake_mode.shape_env is not None
        self.builder.annotators.append(self._annotate)

    @property
    def graph(self) -> torch.fx.Graph:
        return self.builder.graph

    # ---------------------------------------------------------------------------------------------------- making nodes

    def copy(self, node: torch.fx.Node, args: Any, kwargs: Any, *, has_sizes: bool = True) -> torch.fx.Node:
        """A copy of the given node with new arguments. `has_sizes`: symbolic sizes may be read from it."""
        new = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name, type_expr=node.type)
        new.meta = dict(node.meta)
        if not self._keeps_value(node, new):
            self._compute(new, node)
        if has_sizes:
            self.note_symbols(new)
        return new

    def call(self, target: Any, /, *args: Any, is_extra: bool = True, **kwargs: Any) -> torch.fx.Node:
        """A call that the given graph does not have. If the op raises for these arguments, so does this, and no node is made."""
        value = self.run(target, args, kwargs)
        node = self.builder.call(target, args, kwargs)
        self.builder.describe(node, value)
        self.note_symbols(node)
        if is_extra:
            self.extras.add(node)
        return node

    def element(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        """A getitem of a call with several results."""
        item = self.builder.getitem(node, index, node.meta["val"][index])
        self.note_symbols(item)
        self.extras.add(item)
        return item

    def number(self, value: Any) -> Any:
        """A number or a list of numbers as an argument: symbolic ones become nodes."""
        if isinstance(value, SYMBOLIC_TYPES):
            return self.symbols.node_of(value)
        if isinstance(value, (list, tuple)):
            items = [self.number(item) for item in value]
            return tuple(items) if isinstance(value, tuple) and not isinstance(value, torch.Size) else items
        if isinstance(value, dict):
            return {key: self.number(item) for key, item in value.items()}
        return value

    def run(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call the op on the fake values of its argument nodes. The result has the strides that it has in a trace."""
        if self._kernels is None or not isinstance(target, OpOverload):
            return target(*_values(args), **_values(kwargs))
        return self._kernels.run(target, _values(args), _values(kwargs), [], self._tracker)

    # --------------------------------------------------------------------------------------------------------- values

    def note_symbols(self, node: torch.fx.Node) -> None:
        """Later arguments may read symbolic sizes from the node."""
        if not self._is_symbolic:
            return
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.symbols.track_sizes(value, node)
        elif isinstance(value, SYMBOLIC_TYPES):
            self.symbols.track_value(value, node)

    def _keeps_value(self, given: torch.fx.Node, new: torch.fx.Node) -> bool:
        """Whether the new node can keep the given node's `val`: its arguments have the same metadata."""
        is_view = any(alias is not None for alias in effects_of(given.target).results)
        given_arguments = nodes_in([*given.args, *given.kwargs.values()])
        new_arguments = nodes_in([*new.args, *new.kwargs.values()])
        if len(given_arguments) != len(new_arguments):  # sizes have become nodes
            return False
        before, now = _items_of(given_arguments), _items_of(new_arguments)
        if len(before) != len(now):
            return False
        for a, b in zip(before, now, strict=True):
            if a is b:
                continue
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                if is_view or not _has_same_strides(
                    a, b
                ):  # the `val` of a view shares the storage of its source's `val`
                    return False
            elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
                return False
        return True

    def _compute(self, new: torch.fx.Node, given: torch.fx.Node) -> None:
        if new.op != "call_function" or given.meta.get("val") is None:
            return
        if any(tag in getattr(given.target, "tags", ()) for tag in _DATA_DEPENDENT):
            return
        if new.target is operator.getitem:
            source, index = new.args
            value = source.meta["val"][index]  # type: ignore[union-attr]
        else:
            try:
                value = self.run(new.target, new.args, new.kwargs)
            except RefimplError:
                raise
            except Exception:
                self.graph.erase_node(new)
                raise
        self.builder.describe(new, value)

    def _annotate(self, node: torch.fx.Node) -> None:
        if self.origin is not None:
            node.meta.update({key: value for key, value in self.origin.meta.items() if key not in VALUE_META_KEYS})


def _items_of(nodes: Sequence[torch.fx.Node]) -> list[Any]:
    """The values of nodes; a list is replaced by its items."""
    values = [node.meta.get("val") for node in nodes]
    return [item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,))]


def _has_same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether kernels return the same strides for both. Some kernels copy strides of dimensions of size 1, so these count too."""
    if not is_same_layout(a, b):
        return False
    return a.layout is not torch.strided or a.is_nested or b.is_nested or is_same_shape(a.stride(), b.stride())


def _values(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return value.meta["val"]
    if isinstance(value, (list, tuple)):
        return [_values(item) for item in value]
    if isinstance(value, dict):
        return {key: _values(item) for key, item in value.items()}
    return value


def map_nodes(value: Any, map_node: Callable[[torch.fx.Node], Any]) -> Any:
    """The argument with `map_node` applied to the nodes in it."""
    if isinstance(value, torch.fx.Node):
        return map_node(value)
    if isinstance(value, (list, tuple)):
        items = [map_nodes(item, map_node) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: map_nodes(item, map_node) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(map_nodes(part, map_node) for part in (value.start, value.stop, value.step)))
    return value


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode | None:
    """The fake mode of the nodes' values."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, FakeTensor):
                return item.fake_mode
    return None
