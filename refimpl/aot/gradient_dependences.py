"""Which incoming gradients each gradient depends on.

Counterpart: none; torch's aot_autograd gives zeros where eager mode gives None
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.aot.history import steps_behind
from refimpl.aot.replay import has_custom_function


def gradient_dependences(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """Of every gradient that the joint graph returns, the indices of the tangents it is computed from."""
    bits = _tangents_read(joint.graph, tangents)
    returned: Any = joint.graph.output_node().args[0]
    gradients = returned[first_gradient : first_gradient + num_gradients]
    return tuple(
        frozenset(i for i in range(len(tangents)) if isinstance(g, torch.fx.Node) and bits.get(g, 0) >> i & 1)
        for g in gradients
    )


def given_unread(
    graph: torch.fx.Graph,
    outputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
    node_of: Callable[[torch.Tensor], Any],
) -> tuple[frozenset[int], ...]:
    """Of every gradient, the indices of the tangents that autograd gives one for without reading them: that of `x ** 0` is zeros.

    gradients: of which leaf each is, and what was recorded for it. To be called while nothing is recorded.
    """
    bits = _tangents_read(graph, [node_of(tangent) for tangent in tangents])
    found: list[set[int]] = [set() for _ in gradients]
    for index, (output, tangent) in enumerate(zip(outputs, tangents, strict=True)):
        unread = [g for g, (_, value) in enumerate(gradients) if not bits.get(node_of(value), 0) >> index & 1]
        steps = set(steps_behind([output])) if unread else set()
        if any(has_custom_function(step, 1) for step in steps):
            continue  # a backward of the user's is asked once
        for g in unread:
            leaf = gradients[g][0]
            if torch.autograd.graph.get_gradient_edge(leaf).node not in steps:
                continue
            (gradient,) = torch.autograd.grad(output, leaf, tangent, allow_unused=True, retain_graph=True)
            if gradient is not None:
                found[g].add(index)
    return tuple(map(frozenset, found))


def _tangents_read(graph: torch.fx.Graph, tangents: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, int]:
    """By node, bits of the tangents it is computed from."""
    bits = {node: 1 << index for index, node in enumerate(tangents)}
    for node in graph.nodes:
        if node.op == "call_function":
            found = 0
            for argument in node.all_input_nodes:
                found |= bits.get(argument, 0)
            bits[node] = found
    return bits
