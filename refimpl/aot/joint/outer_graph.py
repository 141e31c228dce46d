"""A graph of the ops that a program calls on wrapper subclasses. It tells which wrappers are views, aliases or written to.

Counterpart: none; upstream functionalizes wrappers as they are (FunctionalTensor around a wrapper)
Differs: one run records two graphs. The dense graph, of the plain tensors inside wrappers, is compiled. This one is analysed:
its view ops are called again at run time, on wrappers, to remake aliases.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, DispatchMode, OpOverload, is_nested_int, is_opaque_object, pytree
from refimpl.aot.analysis.fake_arguments import unrelated_alias
from refimpl.aot.analysis.subclasses import Layout, ProgramLayout, build, dense_parts, layout_of
from refimpl.functionalize.aliases import AliasMap
from refimpl.trace.graph_builder import LITERALS
from refimpl.trace.metadata import note, note_grad_mode, notes_of
from refimpl.trace.recording_mode import RecordingMode
from refimpl.trace.tracker import TrackerState


class DenseNodes:
    """The nodes in the dense graph of a value, and how they make up the value."""

    def __init__(self, layout: Layout, nodes: Sequence[torch.fx.Node]) -> None:
        self.layout = layout
        self.nodes = list(nodes)


class OuterGraphMode(DispatchMode):
    """Records `graph`, with a node for every op that the program calls on wrappers or plain tensors. One per trace.

    It runs before the recording mode, which sees dense ops only. The notes of a node name the dense nodes of its result.
    """

    supports_higher_order_operators = True

    def __init__(self, recording: RecordingMode) -> None:
        super().__init__()
        self.recording = recording
        self.graph = torch.fx.Graph()
        self.tracker = TrackerState()
        self._numbers: dict[torch.fx.Node, torch.SymInt] = {}
        self._num_tangents = 0
        self._dense_aliases: AliasMap | None = None
        self.layout: ProgramLayout | None = None

    # ------------------------------------------------------------------------------------------------------- recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.recording.is_recording:
            return func(*args, **kwargs)
        node_args, node_kwargs = self.node_of(args), self.node_of(kwargs)
        result = func(*args, **kwargs)
        if isinstance(func, OpOverload) and (_has_tensor(result) or func._schema.is_mutable):
            node = self.graph.call_function(func, node_args, node_kwargs)
            note_grad_mode(node)
            self._track_result(result, node)
        return result

    def _track_result(self, result: Any, node: torch.fx.Node) -> None:
        node.meta["val"] = result
        if isinstance(result, torch.Tensor):
            self._describe(result, node)
            self.tracker.track(result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    element = self.graph.call_function(operator.getitem, (node, index))
                    note(element, is_in_grad_mode=notes_of(node).is_in_grad_mode)
                    self._track_result(item, element)

    def _describe(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Keeps a description of the tensor, because a reference to it would change what autograd does with it."""
        node.meta["val"] = _Likeness(tensor)
        nodes: list[torch.fx.Node] = []
        for part in dense_parts(tensor):
            found = self.recording.tracker.find(part) if isinstance(part, torch.Tensor) else None
            if found is not None:
                nodes.append(found.node)
            elif is_opaque_object(part):  # a DTensor's mesh
                nodes.append(self.recording.node_of(part))
        note(node, dense=DenseNodes(layout_of(tensor), nodes))

    def placeholder(self, value: Any) -> torch.fx.Node:
        """An input of the program."""
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._describe(value, node)
            self.tracker.track(value, node)
        return node

    def track(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Track another tensor object as the node's value, for a plain tensor also in the dense graph."""
        self.tracker.track(tensor, node)
        dense = notes_of(node).dense
        if layout_of(tensor) is None and dense is not None:
            self.recording.track(tensor, dense.nodes[0])

    def node_of(self, value: Any) -> Any:
        """Like RecordingMode.node_of, in this graph. A tensor that no op returned is inside a wrapper, or a constant."""
        if isinstance(value, torch.Tensor):
            tracked = self.tracker.find(value)
            if tracked is not None:
                return tracked.node
            node = self.graph.get_attr(f"value_{len(self.graph.nodes)}")
            self._describe(value, node)
            self.tracker.track(value, node)
            return node
        if isinstance(value, torch.SymInt) and not is_nested_int(value):
            node = self.graph.get_attr(f"number_{len(self.graph.nodes)}")
            node.meta["val"] = self._numbers[node] = value
            return node
        if type(value) in (tuple, list):
            return type(value)(map(self.node_of, value))  # type: ignore[arg-type]
        if type(value) is dict:
            return {key: self.node_of(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return tuple(map(self.node_of, value))
        return value if isinstance(value, _ARGUMENTS) else repr(value)

    # ------------------------------------------------------------------------------------- what the joint trace asks for

    def slots_of(self, slots: Sequence[Any], primals: Sequence[Any]) -> list[Any]:
        """The values of the slots: the wrappers themselves, and the dense graph's inputs for all others."""
        values: list[Any] = []
        first = 0
        for slot in slots:
            layout = layout_of(slot)
            values.append(primals[first] if layout is None else slot)
            first += 1 if layout is None else layout.count
        return values

    def is_written(self, slot: Any) -> bool:
        """Whether an op writes to a dense tensor of the slot."""
        if self._dense_aliases is None:
            self._dense_aliases = AliasMap(self.recording.builder.graph)
        for part in dense_parts(slot):
            tracked = self.recording.tracker.find(part) if isinstance(part, torch.Tensor) else None
            if tracked is not None and self._dense_aliases.writes_to(self._dense_aliases.base_of(tracked.node)):
                return True
        return False

    def value_of(self, node: torch.fx.Node) -> Any:
        """The output of the dense graph for a node of this graph."""
        return self._numbers[node] if node in self._numbers else notes_of(node).dense

    def tangent(self, out: torch.Tensor) -> torch.Tensor:
        """A tangent of the class that the output asks for, with a new placeholder for every dense tensor in it."""
        coerce = getattr(out, "__coerce_tangent_metadata__", None)
        like = out if coerce is None or layout_of(out) is None else coerce()
        layout = layout_of(like)
        parts: list[Any] = []
        for part in dense_parts(like):
            self._num_tangents += 1
            name = f"tangents_{self._num_tangents}"
            tangent = part  # a DTensor's mesh is no tensor
            if isinstance(part, torch.Tensor):
                tangent = unrelated_alias(torch.empty_like(part, memory_format=torch.preserve_format))
            node = self.recording.builder.late_placeholder(name, tangent)
            if isinstance(part, torch.Tensor):
                self.recording.track(tangent, node)
            parts.append(tangent)
        return build(layout, parts)

    def forget_tangents(self) -> None:
        """Count tangents from 0 again: those made so far were erased."""
        self._num_tangents = 0

    def flattened(
        self, slots: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        """The outputs of the dense graph. Sets `layout`, which says how wrappers are rebuilt from them."""
        dense: list[Any] = []
        output_layouts = [_append(value, dense) for value in outputs]
        gradient_layouts = [_append(value, dense) for value in gradients]
        self.layout = ProgramLayout(
            inputs=tuple(map(layout_of, slots)),
            outputs=tuple(output_layouts),
            tangents=tuple(map(layout_of, tangents)),
            gradients=tuple(gradient_layouts),
        )
        return dense


_ARGUMENTS = (*LITERALS, *SYMBOLIC_TYPES)


class _Likeness:
    """The sizes, strides, dtype and device of a tensor, without the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.device = tensor.device
        self._stride = tensor.stride() if tensor.layout is torch.strided and not tensor.is_nested else ()
        self._offset = tensor.storage_offset() if self._stride else 0
        self._numel = tensor.numel() if not tensor.is_nested else 0

    def stride(self) -> tuple[Any, ...]:
        return self._stride

    def storage_offset(self) -> Any:
        return self._offset

    def numel(self) -> Any:
        return self._numel


def _append(value: Any, dense: list[Any]) -> Layout:
    if isinstance(value, DenseNodes):
        dense += [torch.fx.Proxy(node) for node in value.nodes]
        return value.layout
    dense += dense_parts(value)
    return layout_of(value)


def _has_tensor(result: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result))
