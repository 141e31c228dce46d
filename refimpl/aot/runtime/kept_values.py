"""Values that a part of a backward needs: looked at when that part runs, as autograd looks at what each of its own steps saved.

Counterpart: none; upstream saves all values of a compiled forward together, and the backward of one result asks after all of them
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import has_saved_tensors_hooks, keeps_autograd_graph
from refimpl.aot.errors import FreedGraph, StaleValue
from refimpl.aot.op_facts import memory_owners
from refimpl.aot.partition.joint import is_tangent

Needs = tuple[frozenset[int] | None, ...]


def partly_needed(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, num_outputs: int) -> Needs:
    """Of every tensor that crosses, in order, the incoming gradients whose backward reads it; None where all of them do, or
    where the graphs alone have its memory. Empty if there is no other.

    num_outputs: how many outputs of the forward are not saved values.
    """
    nodes = list(forward.graph.nodes)
    outputs: Any = nodes[-1].args[0]
    owners = memory_owners(nodes[:-1])
    results = {owners[node] for node in outputs[:num_outputs] if isinstance(node, torch.fx.Node)}
    saved = [node for node in outputs[num_outputs:] if _is_tensor(node)]
    readers, count = _readers(backward)
    if len(readers) != len(saved):
        return ()
    is_seen = [owners[node] in results or owners[node].op == "placeholder" for node in saved]
    needs = [by if seen and 0 < len(by) < count else None for by, seen in zip(readers, is_seen, strict=True)]
    return tuple(needs) if any(by is not None for by in needs) else ()


def _readers(backward: torch.fx.GraphModule) -> tuple[list[frozenset[int]], int]:
    """Of every saved tensor the tangents that its readers depend on; how many tangents there are."""
    nodes = [node for node in backward.graph.nodes if node.op != "output"]
    tangents = [node for node in nodes if is_tangent(node)]
    depends: dict[torch.fx.Node, frozenset[int]] = {node: frozenset([i]) for i, node in enumerate(tangents)}
    for node in nodes:
        if node not in depends:
            depends[node] = frozenset().union(*(depends[read] for read in node.all_input_nodes))
    needed: dict[torch.fx.Node, frozenset[int]] = {}
    for node in reversed(nodes):
        needed[node] = depends[node] or frozenset().union(*(needed.get(user, frozenset()) for user in node.users))
    saved = [node for node in nodes if node.op == "placeholder" and node not in tangents and _is_tensor(node)]
    returned = set(backward.graph.output_node().all_input_nodes)
    everything = frozenset(range(len(tangents)))
    return [everything if _reaches(node, returned, depends) else needed[node] for node in saved], len(tangents)


def _reaches(node: torch.fx.Node, returned: Collection[torch.fx.Node], depends: dict[torch.fx.Node, Any]) -> bool:
    """Whether a gradient is made of the value that no tangent has a part in."""
    waiting, seen = [node], {node}
    while waiting:
        reached = waiting.pop()
        if reached in returned:
            return True
        following = [user for user in reached.users if not depends.get(user, True) and user not in seen]
        seen.update(following)
        waiting += following
    return False


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptValue:
    """One such value of one call."""

    index: int  # among the saved tensors
    tensor: torch.Tensor
    version: int
    needed_by: frozenset[int]
    requires_grad: bool

    def check(self) -> None:
        """Raises StaleValue if it was written to since."""
        if self.tensor._version != self.version:
            raise StaleValue(self.tensor, self.version)


class KeptValuesState:
    """Of one call, until its backward has run for good."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], needs: Needs, slots: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Hooks on saved tensors see all of them, and switch off autograd's check: then nothing is kept here."""
        given, differentiable = set(map(id, slots)), set(map(id, results))
        self.values: list[KeptValue] | None = []
        for index, (tensor, needed_by) in enumerate(zip(tensors, needs, strict=True)):
            if needed_by is None or tensor.is_inference() or has_saved_tensors_hooks():
                continue
            is_input = id(tensor) in given
            kept = KeptValue(
                index=index,
                tensor=tensor if is_input else tensor.detach(),  # a result holds this call, and must not be held by it
                version=tensor._version,
                needed_by=needed_by,
                requires_grad=tensor.requires_grad if is_input else id(tensor) in differentiable,
            )
            self.values.append(kept)

    def others(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those that autograd saves."""
        assert self.values is not None
        here = {kept.index for kept in self.values}
        return [tensor for index, tensor in enumerate(tensors) if index not in here]

    def take(self, saved: Sequence[torch.Tensor], arrived: Collection[int]) -> tuple[list[torch.Tensor], bool]:
        """All tensors in order, and whether one that is needed requires a gradient. Raises StaleValue, FreedGraph."""
        if self.values is None:
            raise FreedGraph
        tensors = list(saved)
        requires_grad = False
        for kept in self.values:
            if not kept.needed_by.isdisjoint(arrived):
                kept.check()
                requires_grad |= kept.requires_grad
            tensors.insert(kept.index, kept.tensor)
        if not keeps_autograd_graph():
            self.values = None
        return tensors, requires_grad
