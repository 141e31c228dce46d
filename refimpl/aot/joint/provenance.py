"""Nodes of the backward say which line of the program they belong to: that of the forward op whose gradient they compute.

Counterpart: torch/_functorch/_aot_autograd/utils.py copy_fwd_metadata_to_bw_nodes
"""

from __future__ import annotations

import torch

from refimpl._torch import autograd_sequence_number, running_autograd_node

_FIELD = "autograd_step"
# Field of a forward node -> of the backward nodes it belongs to.
_COPIED = {
    "stack_trace": "stack_trace",
    "nn_module_stack": "fwd_nn_module_stack",
    "source_fn_stack": "fwd_source_fn_stack",
}


def note_autograd_step(node: torch.fx.Node, *, is_backward: bool) -> None:
    """To be called when a node is recorded: an op's own step of autograd exists by then, and has the last number given out."""
    if not is_backward:
        node.meta[_FIELD] = autograd_sequence_number() - 1
        return
    running = running_autograd_node()
    if running is not None:
        node.meta[_FIELD] = running._sequence_nr()


def step_number(node: torch.fx.Node) -> int | None:
    """Of the step of autograd that a node was recorded for. To be asked before the provenance is copied."""
    return node.meta.get(_FIELD)


def copy_forward_provenance(graph: torch.fx.Graph) -> None:
    """To be called when the trace is finished."""
    forward: dict[int, torch.fx.Node] = {}
    for node in graph.nodes:
        step = node.meta.pop(_FIELD, None)
        if step is None:
            continue
        if node.meta.get("partitioner_tag") != "is_backward":
            forward.setdefault(step, node)  # ops after it with the number have no gradient
        elif step in forward:
            origin = forward[step].meta
            node.meta.update({name: origin[field] for field, name in _COPIED.items() if origin.get(field)})
