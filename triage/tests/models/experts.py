"""A mixture of experts: each token goes to its two best experts."""

import torch
from torch import nn


class Experts(nn.Module):
    """The experts' weights, stacked; each row of x has an expert of its own."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / width**0.5)

    def forward(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.silu(torch.einsum("rw,rwh->rh", x, self.up[experts]))
        return torch.einsum("rh,rhw->rw", hidden, self.down[experts])


class Router(nn.Module):
    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = self.gate(x).softmax(dim=-1).topk(self.chosen, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), experts


class Mixture(nn.Module):
    def __init__(self, width: int, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.router = Router(width, experts, chosen)
        self.experts = Experts(width, experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x)
        order = chosen.flatten().argsort(stable=True)  # rows of one expert side by side
        rows = order // chosen.shape[1]
        results = self.experts(x[rows], chosen.flatten()[order])
        return torch.zeros_like(x).index_add_(0, rows, results * weights.flatten()[order, None])


class Model(nn.Module):
    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.mixtures = nn.ModuleList(Mixture(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            x = x + mixture(norm(x).reshape(-1, width)).view(batch, length, width)
        return x
