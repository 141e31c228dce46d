"""Which incoming gradients each gradient depends on.

Counterpart: none; torch's aot_autograd gives zeros where eager mode gives None
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def gradient_dependences(
    joint: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], first_gradient: int, num_gradients: int
) -> tuple[frozenset[int], ...]:
    """Of every gradient that the joint graph returns, the indices of the tangents it is computed from."""
    bits = {node: 1 << index for index, node in enumerate(tangents)}
    for node in joint.graph.nodes:
        if node.op == "call_function":
            found = 0
            for argument in node.all_input_nodes:
                found |= bits.get(argument, 0)
            bits[node] = found
    returned: Any = joint.graph.output_node().args[0]
    gradients = returned[first_gradient : first_gradient + num_gradients]
    return tuple(
        frozenset(i for i in range(len(tangents)) if isinstance(g, torch.fx.Node) and bits.get(g, 0) >> i & 1)
        for g in gradients
    )
