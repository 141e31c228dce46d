"""How much memory the two graphs hold at most, run op by op.

A simulation over the graphs: memory lives from the op that makes it to the last op that reads it or a view of it. Inputs are the
caller's and not counted; what the forward returns stays until the backward has read it, or to its end if it is an output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from refimpl._torch import pytree
from refimpl.aot.op_facts import memory_owners
from refimpl.aot.partition.sizes import bytes_of


def peak_bytes(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_fwd_outputs: int) -> tuple[int, int]:
    """Most bytes held at once in the forward, and in the backward."""
    results = pytree.tree_leaves(list(forward.graph.nodes)[-1].args[0])
    saved = [node for node in results[num_fwd_outputs:] if isinstance(node, torch.fx.Node)]
    outputs = [node for node in results[:num_fwd_outputs] if isinstance(node, torch.fx.Node)]
    owners = memory_owners(forward.graph.nodes)
    owner_names = {node.name: owners[node].name for node in saved}
    is_input = {node.name for node in saved if owners[node].op == "placeholder"}
    held_by_caller = {owners[node].name for node in outputs}
    crossing = {owner_names[n.name]: bytes_of(owners[n].meta.get("val")) for n in saved if n.name not in is_input}
    in_forward = _peak(forward, {}, {}, frozenset())
    in_backward = _peak(backward, owner_names, crossing, held_by_caller)
    return in_forward, in_backward


def _peak(
    module: torch.fx.GraphModule,
    owner_names: Mapping[str, str],
    arriving: Mapping[str, int],
    held: Collection[str],
) -> int:
    """`arriving`: memory there from the start, `owner_names` says which inputs lie in it; `held` is never freed."""
    nodes = list(module.graph.nodes)
    output = nodes.pop()
    owners = memory_owners(nodes)

    def memory_of(node: torch.fx.Node) -> str:
        owner = owners[node]
        return owner_names.get(owner.name, owner.name) if owner.op == "placeholder" else owner.name

    last_read: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            last_read[memory_of(read)] = i
    for read in output.all_input_nodes:
        last_read[memory_of(read)] = len(nodes)
    dying: dict[int, list[str]] = {}
    for name, i in last_read.items():
        dying.setdefault(i, []).append(name)
    sizes = {**arriving}
    live = peak = sum(sizes.values())
    for i, node in enumerate(nodes):
        if node.op == "call_function" and owners[node] is node and isinstance(node.meta.get("val"), torch.Tensor):
            sizes[node.name] = bytes_of(node.meta["val"])
            live += sizes[node.name]
            peak = max(peak, live)
        for name in dying.get(i, ()):
            if name not in held:
                live -= sizes.pop(name, 0)
    return peak
