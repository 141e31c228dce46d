"""How much a forward keeps for its backward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from refimpl._torch import pytree
from refimpl.aot.op_facts import memory_owners
from refimpl.aot.partition.sizes import bytes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes of what a forward graph returns beyond its outputs. `kept` counts memory, once however often it is returned, inputs
    and outputs not included, as they are held by the caller; `returned` counts every saved tensor by its own elements."""

    kept: int
    returned: int
    inputs: int
    tensors: int
    scalars: int


def saved_bytes(forward: torch.fx.GraphModule, num_fwd_outputs: int) -> SavedBytes:
    """Of a forward graph whose first `num_fwd_outputs` outputs are the program's. Symbolic sizes count as they were traced."""
    nodes = list(forward.graph.nodes)
    outputs = pytree.tree_leaves(nodes[-1].args[0])
    saved = [node for node in outputs[num_fwd_outputs:] if isinstance(node, torch.fx.Node)]
    tensors = [node for node in saved if isinstance(node.meta.get("val"), torch.Tensor)]
    owners = memory_owners(nodes)
    held = dict.fromkeys(owners[node] for node in tensors)
    outside = {owners[node] for node in outputs[:num_fwd_outputs] if isinstance(node, torch.fx.Node)}
    inputs = [owner for owner in held if owner.op == "placeholder"]
    kept = [owner for owner in held if owner.op != "placeholder" and owner not in outside]
    return SavedBytes(
        kept=sum(bytes_of(owner.meta.get("val")) for owner in kept),
        returned=sum(bytes_of(node.meta.get("val")) for node in tensors),
        inputs=sum(bytes_of(owner.meta.get("val")) for owner in inputs),
        tensors=len(tensors),
        scalars=len(saved) - len(tensors),
    )
