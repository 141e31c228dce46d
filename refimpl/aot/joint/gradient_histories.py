"""Which gradients have a history of their own: those that a backward makes of values that depend on the inputs.

Counterpart: none; upstream asks whether saved tensors require gradients, and of what a compiled forward has made none does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.trace.recording_mode import RecordingMode

# In the meta of a node of the backward: it reads a tensor that requires a gradient.
_READS_HISTORY = "reads_history"
# And: it is part of the decomposition of an op whose result would require one.
IS_DECOMPOSED = "is_decomposed_gradient"
_DETACHED = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def note_history(node: torch.fx.Node, recording: RecordingMode) -> None:
    """To be called when a node of the backward is recorded."""
    if any(tensor.requires_grad for tensor in recording.operands):
        node.meta[_READS_HISTORY] = True
    if recording.decomposed is not None:
        node.meta[IS_DECOMPOSED] = True


def gradient_histories(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """Of every gradient that the joint graph returns, the indices of the tangents whose arrival lets it require a gradient in
    eager mode, also if they themselves do not: what is computed with them reads values that do."""
    reads = {node: 1 << index for index, node in enumerate(tangents)}
    found: dict[torch.fx.Node, int] = {}
    has_history: set[torch.fx.Node] = set()  # that no tangent has a part in
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        sources = node.all_input_nodes
        bits = histories = 0
        for source in sources:
            bits |= reads.get(source, 0)
            histories |= found.get(source, 0)
        if bits:
            reads[node] = bits
        if not _is_differentiable(node):
            continue
        if _READS_HISTORY in node.meta or not has_history.isdisjoint(sources):
            histories |= bits
            if not bits:
                has_history.add(node)
        if histories:
            found[node] = histories
    returned: Any = joint.graph.output_node().args[0]
    everything = (1 << len(tangents)) - 1
    gradients = returned[first_gradient : first_gradient + num_gradients]
    by_gradient = [everything if g in has_history else found.get(g, 0) for g in gradients]
    return tuple(frozenset(i for i in range(len(tangents)) if bits >> i & 1) for bits in by_gradient)


def _is_differentiable(node: torch.fx.Node) -> bool:
    """Whether a result has the history of what it is computed from."""
    if IS_DECOMPOSED in node.meta:
        return True
    value = node.meta.get("val")
    is_number = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return node.target not in _DETACHED and not is_number
