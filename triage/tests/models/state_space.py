"""A state-space model: a scan over time with decays that depend on the input."""

import torch
import torch.nn.functional as F
from torch import nn


class Scan(nn.Module):
    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.randn(width, states))
        self.step = nn.Linear(width, width)
        self.read, self.write = nn.Linear(width, states), nn.Linear(width, states)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = F.softplus(self.step(x))
        decay = torch.exp(step[..., None] * -F.softplus(self.rate))
        given = (step * x)[..., None] * self.write(x)[:, :, None]
        read = self.read(x)
        state = torch.zeros_like(decay[:, 0])
        outputs = []
        for at in range(x.shape[1]):
            state = decay[:, at] * state + given[:, at]
            outputs.append((state * read[:, at, None]).sum(dim=-1))
        return torch.stack(outputs, dim=1)


class Block(nn.Module):
    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.scan = Scan(width, states)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.scan(y) * F.silu(self.gate(y))


class StateSpace(nn.Module):
    """Predicts running sums of its features."""

    def __init__(self, width: int = 6, states: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, states) for _ in range(depth))
        self.total = Totals()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.total(x)


class Totals(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        return torch.cumsum(x, dim=1) / count[:, None]
