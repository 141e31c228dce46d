"""Models on sets and graphs: embedding bags, scatter and index_add."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RecommendationModel(nn.Module):
    """Embedding bags, pairwise products, two perceptrons, after DLRM.

    dense (N, 6) floats, first (N, 3) and second (N, 2) ids -> click probability (N,).
    """

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.first = nn.EmbeddingBag(20, 8, mode="sum")
        self.second = nn.EmbeddingBag(30, 8, mode="mean")
        self.top = nn.Sequential(nn.Linear(8 + 3, 16), nn.ReLU(), nn.Linear(16, 1))
        self.pairs: torch.Tensor
        self.register_buffer("pairs", torch.tril_indices(3, 3, offset=-1), persistent=False)

    def forward(self, dense: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        features = torch.stack([bottom, self.first(first), self.second(second)], dim=1)  # (N, 3, 8)
        products = features @ features.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]  # (N, 3)
        return torch.sigmoid(self.top(torch.cat([bottom, crossed], dim=1))).squeeze(1)


class GraphConvolution(nn.Module):
    """Two graph convolutions with symmetric normalisation: nodes (V, 8), edges (2, E) -> (V, 4) and a readout (4,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.second = nn.Linear(16, 4, bias=False)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loops = torch.arange(nodes.shape[0], device=nodes.device)
        source, target = torch.cat([edges, loops.expand(2, -1)], dim=1)
        degree = torch.zeros_like(nodes[:, 0]).index_add(0, target, torch.ones_like(target, dtype=nodes.dtype))
        weight = (degree[source] * degree[target]).rsqrt()[:, None]
        hidden = torch.relu(self._propagate(self.first(nodes), source, target, weight))
        hidden = self._propagate(self.second(hidden), source, target, weight)
        return hidden, hidden.amax(dim=0)

    @staticmethod
    def _propagate(
        values: torch.Tensor, source: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        return torch.zeros_like(values).index_add_(0, target, values[source] * weight)


class GraphAttention(nn.Module):
    """Attention over incoming edges with a scatter softmax: nodes (V, 8), edges (2, E) -> (V, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(8, 8)
        self.score = nn.Linear(16, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        loops = torch.arange(nodes.shape[0], device=nodes.device)
        source, target = torch.cat([edges, loops.expand(2, -1)], dim=1)
        values = self.value(nodes)
        score = F.leaky_relu(self.score(torch.cat([values[source], values[target]], dim=-1)), 0.2).squeeze(-1)
        largest = torch.full_like(nodes[:, 0], float("-inf")).scatter_reduce(0, target, score.detach(), "amax")
        share = torch.exp(score - largest[target])
        total = torch.zeros_like(nodes[:, 0]).scatter_add(0, target, share)
        share = share / total[target]
        return torch.zeros_like(values).index_add(0, target, values[source] * share[:, None])
