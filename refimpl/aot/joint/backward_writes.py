"""Inputs that the backward writes to: a hook, or a custom backward, that counts its calls in an argument.

The backward graph takes such an input as it is when the backward runs, and returns its new value, which the runtime writes to it.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py, the copy_ of mutated inputs at the end of the backward
Differs: the backward reads the input when it runs. Upstream's reads the value that the forward saved, so
that of two backwards the second undoes what the first wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_arg

from refimpl.aot.joint.backward import IS_BACKWARD, is_backward_write
from refimpl.errors import UnsupportedByRefimpl
from refimpl.functionalize.aliases import VIEWED, AliasMap
from refimpl.functionalize.schemas import METADATA_OPS, RESIZE_OPS, SET_OPS
from refimpl.trace.graph_builder import GraphBuilder

Node = torch.fx.Node


def inputs_written_in_backward(aliases: AliasMap, placeholders: Sequence[Node]) -> list[int]:
    """The positions of the placeholders whose memory an op of the backward writes to."""
    written = [any(map(is_backward_write, aliases.writes_to(node))) for node in placeholders]
    return [position for position, is_written in enumerate(written) if is_written]


def read_when_backward_runs(builder: GraphBuilder, aliases: AliasMap, current: Mapping[Node, Node]) -> None:
    """Let the backward use the placeholders `current[p]` in place of placeholders p, also for views that the forward made of p.

    aliases: of the graph before the new placeholders.

    Raises UnsupportedByRefimpl if the program changes the input's geometry or memory: the views would not be its views.
    """
    backward = [node for node in builder.graph.nodes if node.meta.get("partitioner_tag") == IS_BACKWARD]
    mapped: dict[Node, Node] = dict(current)

    def now(node: Node) -> Node:
        if aliases.base_of(node) not in current:
            return node
        tensor = aliases.tensor_of(node)
        if tensor.meta.get("partitioner_tag") == IS_BACKWARD:
            return node
        if tensor not in mapped:
            mapped[tensor] = view_now(tensor)
        return mapped[tensor]

    def view_now(tensor: Node) -> Node:
        step = aliases.step_of(tensor)
        assert step is not None  # the base itself is mapped
        if step.node.target in _MOVES:
            raise _geometry_change(step.node)
        source = now(step.source)
        args = tuple([source if arg is VIEWED else arg for arg in step.args])
        kwargs = {name: source if arg is VIEWED else arg for name, arg in step.kwargs.items()}
        with builder.graph.inserting_before(backward[0]):
            view = builder.graph.call_function(step.target, args, kwargs)
            if step.output_index is None:
                view.meta = _backward_meta(step.node)
                return view
            call: Any = step.node.args[0]
            view.meta = _backward_meta(call)
            item = builder.getitem(view, step.output_index, step.node.meta["val"])
        item.meta = _backward_meta(step.node)
        return item

    for node in backward:
        if aliases.base_of(node) in current and node.target in _MOVES:
            raise _geometry_change(node)
        node.args, node.kwargs = map_arg(node.args, now), map_arg(node.kwargs, now)


_MOVES = frozenset((*METADATA_OPS, *RESIZE_OPS, *SET_OPS))


def _backward_meta(node: Node) -> dict[str, Any]:
    return {**node.meta, "partitioner_tag": IS_BACKWARD}


def _geometry_change(node: Node) -> UnsupportedByRefimpl:
    return UnsupportedByRefimpl(
        seen=f"a backward that writes to an input whose geometry or memory the program changes by {node.target}",
        supported="backwards that write to inputs whose size, strides and memory stay as they are",
        do="clone the input before the operation that changes it",
    )
