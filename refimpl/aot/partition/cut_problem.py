"""The choice of saved values, as a minimum cut.

Counterpart: torch/_functorch/partitioners.py solve_min_cut
Differs: see refimpl.aot.partition.min_cut; only nodes between the backward and values that must be saved take part.

The network: a node is two vertices, "computed" and "available". Cutting the edge between them saves the value, and costs its
bytes. Cutting the edge from the source to "computed" recomputes the node, and costs its price: infinite if it must not run twice,
0 if only the backward needs it. An edge from "available" to the sink says that the backward reads the value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from refimpl.aot.errors import UnsplittableJointGraph
from refimpl.aot.joint.backward import is_tangent
from refimpl.aot.partition.flow_network import INFINITE, FlowNetworkBuilder
from refimpl.aot.partition.joint_graph import JointGraph
from refimpl.aot.partition.recomputation import Prices
from refimpl.aot.partition.recompute_prices import RecomputePrices
from refimpl.functionalize.schemas import facts_of
from refimpl.trace.metadata import notes_of

# Ops of sizes: for them autograd saves the number, not the tensor, whose size may change in place.
_OF_GEOMETRY = "aten::sym_"


def exposed_memory(joint: JointGraph) -> frozenset[int]:
    """Tensors that eager does not save for backward but the caller can still reach: arguments, results. Numbers of owners.

    The program may overwrite them before the backward runs, so that the partitioner saves copies. Eager saves what backward nodes
    of the trace read (also if these were merged with forward nodes since), what the program's checkpoints read again, and values
    that are gradients themselves. Parameters are not included: saving them takes no memory.
    """
    results = {joint.owner[i] for i in joint.numbers_of(joint.forward_outputs)}
    exposed = {i for i in results if joint.nodes[i].op not in ("placeholder", "get_attr")}
    exposed |= {i for i, node in enumerate(joint.nodes) if notes_of(node).is_writable_input}
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
        if node.op == "call_function" and facts_of(node.target).name.startswith(_OF_GEOMETRY):
            continue
        if is_late[node] or "recompute" in node.meta:
            exposed.difference_update(kept(read))
    return frozenset(exposed)


# Numbers other than integers are saved only if nothing else is possible.
_LAST_RESORT = 2.0**16
# A parameter is in memory anyway, and a size takes no device memory. Not 0, so that a minimum cut does not save them needlessly.
_FREE = 1e-3
# Views whose arguments are offsets into the storage: applied to a copy, they would read other elements.
_ABSOLUTE_VIEWS = frozenset({"aten::as_strided", "aten::_reshape_alias"})
# Equal layers would all be recomputed from one price on. Later ones cost a little more, so that they are recomputed one by one.
_TIE_BREAK = 0.25


class CutProblem:
    """A joint graph with its costs. A solution is the numbers of nodes to save, some of which the backward may not need."""

    def __init__(
        self,
        joint: JointGraph,
        prices: Prices,
        static_input_indices: Sequence[int],
        recomputable_ops: Collection[Any] | None,
    ) -> None:
        self.joint = joint
        self._prices = RecomputePrices(joint, prices, recomputable_ops)
        self._extra_write = prices.extra_write
        primals = [i for i, node in enumerate(joint.nodes) if node.op == "placeholder" and not is_tangent(node)]
        static = set(static_input_indices)
        self._static = frozenset(i for position, i in enumerate(primals) if position in static)
        self._returned = frozenset(joint.numbers_of(joint.forward_outputs))
        self._read_by_backward = frozenset(
            i
            for i, users in enumerate(joint.users)
            if not joint.is_backward[i] and any(joint.is_backward[u] for u in users)
        ) | {i for i in joint.numbers_of(joint.backward_outputs) if not joint.is_backward[i]}
        self.exposed = exposed_memory(joint)

    def cost_of(self, number: int) -> float:
        """The cost of saving a value; infinite if it cannot be saved, or is a view whose base is saved in its place."""
        joint = self.joint
        node, value = joint.nodes[number], joint.value_of(number)
        if node.op == "get_attr" or joint.is_tuple(number):
            return INFINITE
        if joint.is_view(number) and not self._is_copied(number):
            return INFINITE
        if joint.is_scalar(number):
            return _FREE if isinstance(value, (torch.SymInt, int)) else _LAST_RESORT
        if value is not None and not isinstance(value, torch.Tensor):
            return 1.0  # an object of a class: a reference
        if number in self._static and not self._is_copied(number):
            return _FREE
        cost = float(self._prices.bytes_of(number))
        is_there = number in self._returned or self._prices.is_written_anyway(number)
        return cost * (1 + self._extra_write) if not is_there or self._is_copied(number) else cost

    def _is_copied(self, number: int) -> bool:
        """Whether a copy is saved, because the memory may be overwritten before the backward runs."""
        owner = self.joint.owner[number]
        return owner in self.exposed or self.joint.is_mutated_input(owner)

    def bytes_of(self, saved: Collection[int]) -> float:
        """The bytes of saved tensors, without parameters and other static inputs."""
        return float(
            sum(self._prices.bytes_of(i) for i in saved if not self.joint.is_scalar(i) and i not in self._static)
        )

    def solve(self) -> frozenset[int]:
        """What to save at the prices of the options."""
        return self._solve(self._prices.of)

    def solve_scaled(self, factor: float) -> frozenset[int]:
        """What to save if every op that may be recomputed has a finite price, multiplied by `factor`."""
        count = max(1, len(self.joint.nodes))

        def price(number: int) -> float:
            return factor * (1 + _TIE_BREAK * number / count) * self._prices.of(number, is_any_allowed=True)

        return self._solve(price)

    def _solve(self, price_of: Any) -> frozenset[int]:
        joint = self.joint
        network = FlowNetworkBuilder()
        computed: dict[int, int] = {}
        available: dict[int, int] = {}
        waiting = sorted(self._read_by_backward)
        reached = set(waiting)
        order: list[int] = []
        prices: dict[int, float] = {}
        while waiting:
            i = waiting.pop()
            order.append(i)
            price = prices[i] = self._price(i, price_of)
            computed[i] = network.vertex()
            cost = self.cost_of(i)
            if cost == INFINITE:
                available[i] = computed[i]
            else:
                available[i] = network.vertex()
                network.edge(computed[i], available[i], cost)
            network.edge(network.SOURCE, computed[i], price)
            if i in self._prices.asked_to_recompute and not joint.is_view(i):
                network.edge(computed[i], network.SINK)
            if i in self._read_by_backward:
                network.edge(available[i], network.SINK)
            if price != INFINITE:
                for j in joint.inputs[i]:
                    if j not in reached:
                        reached.add(j)
                        waiting.append(j)
        for i in order:
            if prices[i] != INFINITE:
                for j in joint.inputs[i]:
                    network.edge(available[j], computed[i])
        sink_side = network.sink_side()
        if sink_side is None:
            raise self._no_cut([i for i in order if prices[i] == INFINITE])
        return frozenset(i for i in order if computed[i] not in sink_side and available[i] in sink_side)

    def _price(self, number: int, price_of: Any) -> float:
        facts = self.joint.facts[number]
        if facts is not None and facts.name in _ABSOLUTE_VIEWS and self._is_copied(number):
            return INFINITE
        return price_of(number)

    def _no_cut(self, run_once: Sequence[int]) -> UnsplittableJointGraph:
        """The error that names values which can neither be saved nor recomputed."""
        stuck = [i for i in run_once if self.cost_of(i) == INFINITE]
        named = ", ".join(f"{self.joint.nodes[i].name} ({self.joint.nodes[i].target})" for i in stuck)
        return UnsplittableJointGraph(
            seen=f"the backward needs a value that can neither be saved nor recomputed, through {named or 'its inputs'}",
            expected="tensors and numbers between ops that must run once and the backward",
            do="let the op return tensors, or read the items of its result in the forward",
        )
