"""Memory of which eager mode would save nothing, and that others have too: they may write to it before the backward runs.

Counterpart: none; upstream saves such tensors, and autograd refuses the backward where they are written to
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from refimpl.aot.joint.sides import JointGraph, is_tangent
from refimpl.aot.op_facts import facts_of

# Of these autograd keeps the number, and the tensor may be given another size.
_OF_GEOMETRY = frozenset({f"aten::sym_{name}" for name in ("size", "stride", "numel", "storage_offset")})

# In the meta of a placeholder: the program may write to it before the backward runs.
IS_WRITABLE = "is_writable_input"


def exposed_memory(joint: JointGraph) -> frozenset[int]:
    """Owners of memory that the forward makes and returns, or is given by a program that may write to it, and that autograd
    has saved nothing of.

    It has saved what the nodes read that were recorded in the backward, whatever they were merged with since; what those read
    that run again there because the program asks for it; and what is a gradient as it is. Parameters are none of these owners:
    saving them takes no memory, and saving what is computed of them would.
    """
    results = {joint.owner[i] for i in joint.numbers_of(joint.forward_outputs)}
    exposed = {i for i in results if joint.nodes[i].op not in ("placeholder", "get_attr")}
    exposed |= {i for i, node in enumerate(joint.nodes) if node.meta.get(IS_WRITABLE)}
    is_late: dict[torch.fx.Node, bool] = {}

    def kept(read: Iterable[torch.fx.Node]) -> list[int]:
        numbers = [joint.number_of.get(joint.resolve(node)) for node in read if not is_late[node]]
        return [joint.owner[i] for i in numbers if i is not None]

    for node in joint.module.graph.nodes:
        if not exposed:
            break
        if node.op == "output":
            exposed.difference_update(kept(o for o in joint.backward_outputs if isinstance(o, torch.fx.Node)))
            continue
        read = node.all_input_nodes
        is_late[node] = is_tangent(node) or any(is_late[source] for source in read)
        is_late[node] |= node.op != "placeholder" and node.meta.get("partitioner_tag") == "is_backward"
        if node.op == "call_function" and facts_of(node.target).name in _OF_GEOMETRY:
            continue
        if is_late[node] or "recompute" in node.meta:
            exposed.difference_update(kept(read))
    return frozenset(exposed)
