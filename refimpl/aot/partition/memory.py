"""Memory in bytes: of a node's value, of the values that a forward saves, and the peak of the two graphs.

Counterpart: torch/_functorch/partitioners.py _size_of
Differs: a view counts as the memory of its base, which it keeps alive. Symbolic sizes count as their hints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, pytree
from refimpl.functionalize.schemas import memory_owners

# Stands for an unbacked size. Any number serves to compare such tensors with each other and with known ones.
UNKNOWN_SIZE = 4096
SCALAR_BYTES = 8


def hint_of(size: Any) -> int:
    """A size as an integer: the hint of a symbolic one."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if isinstance(hint, (int, float)) else UNKNOWN_SIZE


def bytes_of(value: Any) -> int:
    """Bytes of the elements of a tensor, or of all tensors in a container."""
    if isinstance(value, torch.Tensor):
        count = 1
        for size in value.shape:
            count *= hint_of(size)
        return count * value.dtype.itemsize
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, (*SYMBOLIC_TYPES, int, float, bool)):
        return SCALAR_BYTES
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes that a forward graph saves.

    kept: every piece of memory once, without inputs and outputs, which the caller holds anyway.
    returned: every saved tensor by its own elements."""

    kept: int
    returned: int
    inputs: int
    tensors: int
    scalars: int


def saved_bytes(forward: torch.fx.GraphModule, num_fwd_outputs: int) -> SavedBytes:
    """The bytes that a forward graph saves whose first `num_fwd_outputs` outputs are the program's results."""
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


def peak_bytes(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_fwd_outputs: int) -> tuple[int, int]:
    """The peak memory in bytes of the forward and of the backward, run op by op.

    Memory lives from the op that allocates it to the last op that reads it or a view of it. Inputs are not counted. A saved value
    lives until the backward has read it, and an output to the end of the backward.
    """
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
    """arriving: memory allocated before the graph runs; owner_names: which inputs use it; held: memory that is never freed."""
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
