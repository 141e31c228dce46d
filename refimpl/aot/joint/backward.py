"""The backward half of the joint trace: incoming gradients, and autograd run on them while it is recorded.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py create_joint
Differs: what autograd refuses (a value that was saved and then written to, an op without derivative) is kept for those outputs
whose gradient needs it, and raised when such a gradient is asked for, as in eager mode. The other outputs keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from refimpl._torch import autograd_sequence_number, running_autograd_node
from refimpl.errors import RefimplError
from refimpl.trace.notes import note, notes_of

IS_BACKWARD = "is_backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Gradients of the targets in order, None for a target that no output depends on. `outputs` are the indices of the outputs
    that have incoming gradients, `refused` those that autograd refuses, with what it raised."""

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
    """Record the gradients of `targets`. `make_tangent` makes an incoming gradient for an output; None where it is 1.

    `forget_tangents` removes all that were made. Nodes recorded meanwhile must be marked as backward by the caller. Raises what
    refimpl raises.
    """
    found = _attempt(outputs, targets, make_tangent)
    if not isinstance(found, Exception):
        return Backward(gradients=found, outputs=tuple(range(len(outputs))), refused=())
    if make_tangent is None:  # one gradient is wanted as a whole
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
        # The graph of autograd is kept for the next attempt; fake tensors hold no data.
        return torch.autograd.grad(outputs, targets, tangents, allow_unused=True, retain_graph=True)
    except RefimplError:
        raise
    except Exception as error:
        return error.with_traceback(None)


def _erase(graph: torch.fx.Graph, forget_tangents: Callable[[], None]) -> None:
    """Removes what was recorded of a backward. Attributes stay: the trace knows them by their nodes."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.meta.get("partitioner_tag") == IS_BACKWARD:
            graph.erase_node(node)
    forget_tangents()


# Field of a forward node -> of the backward nodes it belongs to.
_COPIED = {
    "stack_trace": "stack_trace",
    "nn_module_stack": "fwd_nn_module_stack",
    "source_fn_stack": "fwd_source_fn_stack",
}


# Nodes of the backward carry the stack trace of the forward op whose gradient they compute. The two are matched by the sequence
# number that autograd gives each of its nodes.


def note_autograd_step(node: torch.fx.Node, *, is_backward: bool) -> None:
    """Note on a recorded node the number of its autograd node: the last one given out, or the one of the node that runs."""
    if not is_backward:
        note(node, autograd_step=autograd_sequence_number() - 1)
        return
    running = running_autograd_node()
    if running is not None:
        note(node, autograd_step=running._sequence_nr())


def step_number(node: torch.fx.Node) -> int | None:
    """The sequence number of the autograd node that a graph node was recorded for; gone once the provenance is copied."""
    return notes_of(node).autograd_step


def copy_forward_provenance(graph: torch.fx.Graph) -> None:
    """Copy stack traces and module stacks of forward nodes to their backward nodes, when the trace is finished.

    Counterpart: torch/_functorch/_aot_autograd/utils.py copy_fwd_metadata_to_bw_nodes
    """
    forward: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        step = step_number(node)
        if step is None:
            continue
        note(node, autograd_step=None)
        if node.meta.get("partitioner_tag") != "is_backward":
            forward.setdefault(step, node)  # ops after it with the number have no gradient
        elif step in forward:
            origin = forward[step].meta
            node.meta.update({name: origin[field] for field, name in _COPIED.items() if origin.get(field)})


def is_tangent(node: torch.fx.Node) -> bool:
    """Placeholder of an incoming gradient."""
    return _is_input_named(node, "tangents")


def is_backward_seed(node: torch.fx.Node) -> bool:
    """Placeholder of the seed or offset of the backward's own random numbers."""
    return _is_input_named(node, "bwd_seed", "bwd_base_offset")


def _is_input_named(node: torch.fx.Node, *words: str) -> bool:
    """Inputs of a joint graph are told apart by words in their names, as everywhere in this family of compilers."""
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
