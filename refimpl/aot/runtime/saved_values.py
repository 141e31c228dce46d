"""Saved tensors of a compiled forward, checked and freed for each part of its backward, as autograd does for each of its nodes.

Counterpart: none; upstream saves all values of a compiled forward together, and the backward of one result checks all of them
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from refimpl._torch import has_saved_tensors_hooks, keeps_autograd_graph
from refimpl.aot.analysis.metadata import ProgramAnalysis
from refimpl.aot.errors import FreedGraph, StaleValue
from refimpl.aot.joint.backward import is_tangent
from refimpl.aot.joint.partial_backward import tangents_behind
from refimpl.functionalize.geometry import has_symbols
from refimpl.functionalize.schemas import memory_owners


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValuesPlan:
    """Which saved tensors each part of a backward needs, and which it frees."""

    needs: tuple[frozenset[int] | None, ...]
    """For every saved tensor, the tangents whose backward reads it; None if autograd saves it for the whole backward."""
    freed_together: tuple[frozenset[int], ...]
    """For every tangent, those whose backward cannot run after its own backward has freed saved tensors."""
    is_divided: bool
    """Whether parts may run one after another, each without retain_graph. Autograd then saves nothing."""
    has_parts: bool
    """Whether each part is a graph of its own, which reads neither values it does not need nor zeros for missing tangents."""
    has_symbols: bool
    """Whether sizes are symbols: a compiler may read them from any saved tensor, even if its elements are not needed."""


def plan_saved_values(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    num_outputs: int,
    analysis: ProgramAnalysis,
    *,
    is_divisible: bool,
) -> SavedValuesPlan | None:
    """The plan; None if autograd's own saved tensors suffice, because every part needs all values and frees them.

    num_outputs: how many outputs of the forward are not saved values; is_divisible: whether the backward can be divided into
    parts that read only what they need.
    """
    nodes = list(forward.graph.nodes)
    outputs: Any = nodes[-1].args[0]
    saved = [node for node in outputs[num_outputs:] if _is_tensor(node)]
    readers, count = _readers(backward)
    if len(readers) != len(saved) or len(analysis.freed_together) != count:
        return None
    everything = frozenset(range(count))
    if any(together != everything for together in analysis.freed_together):
        has_parts = is_divisible and not any(analysis.given_unread)
        needs = tuple([by if by and has_parts else everything for by in readers])
        return SavedValuesPlan(
            needs=needs,
            freed_together=analysis.freed_together,
            is_divided=True,
            has_parts=has_parts,
            has_symbols=any(
                node.meta["val"].layout is torch.strided and has_symbols(node.meta["val"]) for node in saved
            ),
        )
    if not is_divisible:
        return None
    owners = memory_owners(nodes[:-1])
    results = {owners[node] for node in outputs[:num_outputs] if isinstance(node, torch.fx.Node)}
    # Memory that only the graphs can reach is never overwritten.
    is_seen = [owners[node] in results or owners[node].op == "placeholder" for node in saved]
    needs = tuple([by if seen and 0 < len(by) < count else None for by, seen in zip(readers, is_seen, strict=True)])
    if all(by is None for by in needs):
        return None
    return SavedValuesPlan(
        needs=needs, freed_together=analysis.freed_together, is_divided=False, has_parts=False, has_symbols=False
    )


def _readers(backward: torch.fx.GraphModule) -> tuple[list[frozenset[int]], int]:
    """For every saved tensor, the tangents that its users depend on; and the number of tangents."""
    nodes = [node for node in backward.graph.nodes if node.op != "output"]
    tangents = [node for node in nodes if is_tangent(node)]
    depends = tangents_behind(backward.graph)
    needed: dict[torch.fx.Node, frozenset[int]] = {}
    for node in reversed(nodes):
        needed[node] = depends[node] or frozenset().union(*(needed.get(user, frozenset()) for user in node.users))
    saved = [node for node in nodes if node.op == "placeholder" and node not in tangents and _is_tensor(node)]
    returned = set(backward.graph.output_node().all_input_nodes)
    everything = frozenset(range(len(tangents)))
    return [everything if _reaches(node, returned, depends) else needed[node] for node in saved], len(tangents)


def _reaches(node: torch.fx.Node, returned: Collection[torch.fx.Node], depends: dict[torch.fx.Node, Any]) -> bool:
    """Whether a returned gradient depends on the value and on no tangent."""
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


class SavedValue(NamedTuple):
    """One saved tensor of one call."""

    position: int  # among the saved tensors
    tensor: torch.Tensor
    version: int
    needed_by: frozenset[int]

    def check(self) -> None:
        """Raises StaleValue if the tensor was modified after it was saved."""
        if self.tensor._version != self.version:
            raise StaleValue(self.tensor, self.version)


class SavedValuesState:
    """The saved tensors of one call, until its backward frees them."""

    def __init__(self, tensors: Sequence[torch.Tensor], saving: SavedValuesPlan, slots: Sequence[Any]) -> None:
        """Under hooks on saved tensors, autograd saves all of them, for the hooks to see, and nothing is saved here."""
        given = set(map(id, slots))
        has_hooks = has_saved_tensors_hooks()
        self.is_divided = saving.is_divided and not has_hooks
        self._freed_together = saving.freed_together
        self._has_symbols = saving.has_symbols
        self._sizes: dict[int, torch.Tensor] = {}  # meta tensors for freed values whose sizes may still be read
        self._freed: frozenset[int] = frozenset()  # tangents whose backward cannot run again
        self._count = len(tensors)
        self._values: list[SavedValue] = []
        for index, (tensor, needed_by) in enumerate(zip(tensors, saving.needs, strict=True)):
            if needed_by is None or tensor.is_inference() or has_hooks:
                continue
            kept = SavedValue(
                position=index,
                tensor=tensor
                if id(tensor) in given
                else tensor.detach(),  # else a result would be in a reference cycle
                version=tensor._version,
                needed_by=needed_by,
            )
            self._values.append(kept)
        self._indices = {kept.position for kept in self._values}

    def others(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that autograd saves."""
        return [tensor for index, tensor in enumerate(tensors) if index not in self._indices]

    def take(
        self, saved: Sequence[torch.Tensor], read: Collection[int], arrived: Collection[int]
    ) -> list[torch.Tensor | None]:
        """All saved tensors in order. Raises StaleValue, FreedGraph.

        read: the tangents whose backward runs; those not in `arrived` are zeros. If the backward is divided, None or, with
        symbolic sizes, a tensor of the same sizes replaces each tensor that the part does not need.
        """
        if not self._freed.isdisjoint(arrived):
            raise FreedGraph
        tensors: list[torch.Tensor | None] = [self._sizes.get(index) for index in range(self._count)]
        for kept in self._values:
            is_needed = not kept.needed_by.isdisjoint(read)
            if is_needed:
                kept.check()
            if is_needed or not self.is_divided or self._has_symbols:
                tensors[kept.position] = kept.tensor
        others = iter(saved)
        for index in range(self._count):
            if index not in self._indices:
                tensors[index] = next(others)
        if not keeps_autograd_graph():
            self._free(arrived)
        return tensors

    def _free(self, arrived: Collection[int]) -> None:
        self._freed = self._freed.union(*[self._freed_together[one] for one in arrived])
        left = [kept for kept in self._values if not kept.needed_by <= self._freed]
        if self._has_symbols:
            gone = [kept for kept in self._values if kept.needed_by <= self._freed]
            self._sizes.update({k.position: _sizes_of(k.tensor) for k in gone if k.tensor.layout is torch.strided})
        self._values = left


def _sizes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like another, without elements."""
    size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    end = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
    return torch.empty(max(end, 0), dtype=tensor.dtype, device="meta").as_strided(size, stride, offset)
