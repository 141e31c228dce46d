"""A flow network, and its minimum cut by scipy's maximum flow.

Counterpart: networkx.minimum_cut, as torch/_functorch/partitioners.py solve_min_cut calls it
Differs: scipy's flow runs in C, on 32-bit integers: capacities are scaled to fit, which leaves a relative error below 1e-6 of the
cut. Of several minimum cuts the one nearest to the sink is returned.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

INFINITE = float("inf")
# Finite capacities are scaled so that their sum stays below this, and no finite flow saturates an infinite edge.
_FINITE_TOTAL = 2**30
_INFINITE_CAPACITY = 2**30 + 2**29


class FlowNetworkBuilder:
    """Edges with capacities. `vertex` numbers vertices; 0 is the source, 1 the sink."""

    SOURCE = 0
    SINK = 1

    def __init__(self) -> None:
        self._vertices = 2
        self._capacities: dict[tuple[int, int], float] = {}

    def vertex(self) -> int:
        """A new vertex."""
        self._vertices += 1
        return self._vertices - 1

    def edge(self, start: int, end: int, capacity: float = INFINITE) -> None:
        """Add capacity from one vertex to another."""
        if capacity > 0:
            self._capacities[start, end] = self._capacities.get((start, end), 0.0) + capacity

    def sink_side(self) -> set[int] | None:
        """The vertices on the sink's side of a minimum cut; None if every cut is infinite."""
        if not self._capacities:
            return {self.SINK}
        edges = np.array(list(self._capacities), dtype=np.int32)
        capacities = np.fromiter(self._capacities.values(), dtype=np.float64, count=len(edges))
        is_finite = np.isfinite(capacities)
        total = capacities[is_finite].sum()
        scale = _FINITE_TOTAL / max(total + is_finite.sum() / 2, 1.0)
        scaled = np.full(len(edges), _INFINITE_CAPACITY, dtype=np.int32)
        scaled[is_finite] = np.maximum(np.rint(capacities[is_finite] * scale), 1).astype(np.int32)
        shape = (self._vertices, self._vertices)
        network = csr_array((scaled, (edges[:, 0], edges[:, 1])), shape=shape)
        found = maximum_flow(network, self.SOURCE, self.SINK)
        if found.flow_value >= _INFINITE_CAPACITY:
            return None
        # Vertices that can still send flow to the sink: residual edges, walked backwards.
        flow = csr_array(found.flow)
        residual = (network - flow).tocsr()
        residual.eliminate_zeros()
        order = breadth_first_order(residual.T.tocsr(), self.SINK, return_predecessors=False)
        return set(order.tolist())
