"""Which nodes of a joint graph belong to its backward.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py, where ops are tagged "is_backward"
"""

from __future__ import annotations

import torch


def backward_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """What depends on incoming gradients, or was recorded while gradients were computed."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        is_tagged = node.meta.get("partitioner_tag") == "is_backward"
        if is_tangent or is_tagged or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found
