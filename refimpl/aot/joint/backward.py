"""The backward half of the joint trace: placeholders for tangents, and autograd run on them while it is recorded.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py create_joint, the copy_ of mutated inputs at the end of the
backward
Differs: if autograd raises for an output (a saved tensor was modified, an operator has no derivative), the error is raised when
a gradient of that output is computed, as in eager. The other outputs keep their gradients. An input that the backward writes to
is read when the backward runs; upstream's reads the value that the forward saved, so that of two backwards the second undoes
what the first wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_arg

from refimpl._torch import autograd_sequence_number, gradients_in_trace, running_autograd_node
from refimpl.aot.analysis.metadata import NeedsMore
from refimpl.errors import RefimplError, UnsupportedByRefimpl
from refimpl.functionalize.aliases import VIEWED, AliasMap
from refimpl.functionalize.schemas import METADATA_OPS, RESIZE_OPS, SET_OPS, effects_of
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.metadata import note, notes_of

IS_BACKWARD = "is_backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """gradients: of the targets in order; None for a target that no output depends on.
    outputs: indices of the outputs that have tangents.
    refused: indices of the outputs that autograd raised for, with the error."""

    gradients: tuple[torch.Tensor | None, ...]
    outputs: tuple[int, ...]
    refused: tuple[tuple[int, Exception], ...]


def trace_backward(
    outputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    graph: torch.fx.Graph,
    make_tangent: Callable[[torch.Tensor], torch.Tensor] | None,
    forget_tangents: Callable[[], None],
) -> Backward:
    """Record the gradients of `targets`.

    make_tangent: makes the tangent of an output; None if the output is a scalar whose tangent is 1.
    forget_tangents: removes all tangents made so far. The caller marks recorded nodes as backward.
    Errors of refimpl are raised; errors of autograd are recorded in the result.
    """
    found = _attempt(outputs, targets, make_tangent)
    if not isinstance(found, Exception):
        return Backward(gradients=found, outputs=tuple(range(len(outputs))), refused=())
    if make_tangent is None:  # there is one output
        _erase(graph, forget_tangents)
        everything = tuple((index, found) for index in range(len(outputs)))
        return Backward(gradients=(None,) * len(targets), outputs=(), refused=everything)
    refused: list[tuple[int, Exception]] = []
    for index, output in enumerate(outputs):
        _erase(graph, forget_tangents)
        error = found if len(outputs) == 1 else _attempt([output], targets, make_tangent)
        if isinstance(error, Exception):
            refused.append((index, error))
    _erase(graph, forget_tangents)
    without = {index for index, _ in refused}
    left = [index for index in range(len(outputs)) if index not in without]
    if not left:
        return Backward(gradients=(None,) * len(targets), outputs=(), refused=tuple(refused))
    again = _attempt([outputs[index] for index in left], targets, make_tangent)
    if isinstance(again, Exception):
        raise again
    return Backward(gradients=again, outputs=tuple(left), refused=tuple(refused))


def _attempt(
    outputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    make_tangent: Callable[[torch.Tensor], torch.Tensor] | None,
) -> tuple[torch.Tensor | None, ...] | Exception:
    tangents = [None if make_tangent is None else make_tangent(output) for output in outputs]
    try:
        # Autograd's graph is kept for the next attempt; fake tensors hold no data.
        return gradients_in_trace(outputs, targets, tangents, allow_unused=True, retain_graph=True)
    except (RefimplError, NeedsMore):
        raise
    except Exception as error:
        return error.with_traceback(None)


def _erase(graph: torch.fx.Graph, forget_tangents: Callable[[], None]) -> None:
    """Erase the recorded nodes of a backward, but not `get_attr` nodes, which the trace may use again."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.meta.get("partitioner_tag") == IS_BACKWARD:
            graph.erase_node(node)
    forget_tangents()


# Key of `meta` of a forward node -> key under which its backward nodes get the same value.
_COPIED = {
    "stack_trace": "stack_trace",
    "nn_module_stack": "fwd_nn_module_stack",
    "source_fn_stack": "fwd_source_fn_stack",
}


# A backward node carries the stack trace of the forward node whose gradient it computes. Both were recorded for autograd nodes of
# the same sequence number.


def note_autograd_step(node: torch.fx.Node, *, is_backward: bool) -> None:
    """Note on a recorded node the sequence number of the autograd node that was last created, or that runs in the backward."""
    if not is_backward:
        note(node, autograd_step=autograd_sequence_number() - 1)
        return
    running = running_autograd_node()
    if running is not None:
        note(node, autograd_step=running._sequence_nr())


def step_number(node: torch.fx.Node) -> int | None:
    """The sequence number of the autograd node that a graph node was recorded for; None after `copy_forward_provenance`."""
    return notes_of(node).autograd_step


def copy_forward_provenance(graph: torch.fx.Graph) -> None:
    """Copy stack traces and module stacks of forward nodes to their backward nodes, at the end of a trace.

    Counterpart: torch/_functorch/_aot_autograd/utils.py copy_fwd_metadata_to_bw_nodes
    """
    forward: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        step = step_number(node)
        if step is None:
            continue
        note(node, autograd_step=None)
        if node.meta.get("partitioner_tag") != "is_backward":
            forward.setdefault(step, node)  # later nodes of the same number created no autograd node
        elif step in forward:
            origin = forward[step].meta
            node.meta.update({name: origin[field] for field, name in _COPIED.items() if origin.get(field)})


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether the node is the placeholder of a tangent."""
    return _is_input_named(node, "tangents")


def is_backward_seed(node: torch.fx.Node) -> bool:
    """Whether the node is the placeholder of a seed or offset for random numbers of the backward."""
    return _is_input_named(node, "bwd_seed", "bwd_base_offset")


def _is_input_named(node: torch.fx.Node, *words: str) -> bool:
    """The kind of a placeholder is known by its name, as upstream's partitioners expect."""
    return node.op == "placeholder" and any(word in str(node.target) for word in words)


def backward_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes of a joint graph that depend on tangents, or were recorded while gradients were computed.

    Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py, where ops are tagged "is_backward"
    """
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        is_tagged = node.meta.get("partitioner_tag") == "is_backward"
        if is_tangent or is_tagged or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def writes_in_backward(graph: torch.fx.Graph) -> bool:
    """Whether any op of the backward writes to memory; mostly that is memory of the backward itself."""
    return any(map(is_backward_write, graph.nodes))


def is_backward_write(node: torch.fx.Node) -> bool:
    """Whether an op of the backward writes to memory."""
    if node.op != "call_function" or node.meta.get("partitioner_tag") != IS_BACKWARD:
        return False
    return bool(effects_of(node.target).written)


# Inputs that the backward writes to: a hook, or a custom backward, that counts its calls in an argument. The backward graph
# takes such an input as it is when the backward runs, and returns its new value, which the runtime writes to it.

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
