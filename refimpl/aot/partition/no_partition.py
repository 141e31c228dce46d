"""The joint graph run as it is: forward up to where incoming gradients are needed, then the rest.

Counterpart: none; it is what a partitioner must agree with
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def split_joint(
    joint_module: torch.fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """A partition without any choice: every value that both sides need is kept, nothing is computed twice or removed."""
    nodes = list(joint_module.graph.nodes)
    tangents = [n for n in nodes if n.op == "placeholder"][len(joint_inputs[0]) :]
    late = set(tangents)
    for node in nodes:
        if node.op != "output" and not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    returned = list(nodes[-1].args[0])
    kept: dict[torch.fx.Node, None] = {}
    for node in nodes[:-1]:
        if node in late:
            kept.update(dict.fromkeys(n for n in node.all_input_nodes if n not in late))
    gradients = returned[num_fwd_outputs:]
    kept.update(dict.fromkeys(g for g in gradients if isinstance(g, torch.fx.Node) and g not in late))
    tensors = [n for n in kept if isinstance(n.meta.get("val"), torch.Tensor) and n.op != "get_attr"]
    numbers = [n for n in kept if not isinstance(n.meta.get("val"), torch.Tensor) and n.op != "get_attr"]

    forward: dict[torch.fx.Node, torch.fx.Node] = {}
    graph = torch.fx.Graph()
    for node in nodes[:-1]:
        if node not in late:
            forward[node] = graph.node_copy(node, forward.__getitem__)
    copies = {n: _clone(graph, forward[n]) if n.meta.get("is_mutated_input") else forward[n] for n in tensors}
    outputs = [forward.get(r, r) for r in returned[:num_fwd_outputs]]
    graph.output([*outputs, *(copies[n] for n in tensors), *(forward[n] for n in numbers)])

    backward: dict[torch.fx.Node, torch.fx.Node] = {}
    rest = torch.fx.Graph()
    for node in (*numbers, *tensors, *tangents):
        backward[node] = rest.placeholder(node.name)
        backward[node].meta = dict(node.meta)
    for node in nodes[:-1]:
        if node.op == "get_attr" or (node in late and node not in backward):
            backward[node] = rest.node_copy(node, backward.__getitem__)
    rest.output([backward.get(g, g) for g in gradients])
    return torch.fx.GraphModule(joint_module, graph), torch.fx.GraphModule(joint_module, rest)


def _clone(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy
