"""Modules that several tests of export use.

PYTEST_DONT_REWRITE: some of them assert, and pytest would put other code in place of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class EverythingModule(nn.Module):
    """A parameter, buffers of both kinds, a tensor attribute, a literal, a submodule; and inputs of several kinds."""

    scale: torch.Tensor
    bias: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("bias", torch.ones(4), persistent=False)
        self.constant = torch.arange(4.0)

    def forward(self, x: torch.Tensor, factor: int, *, mask: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.linear(x) * self.scale + self.bias + self.constant * factor + torch.tensor(0.5)
        if mask is not None:
            y = y * mask
        return {"y": y, "factor": factor, "nothing": None}


class Mutating(nn.Module):
    """Counts its calls in a buffer and writes to its input."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x.mul_(2)
        return x + self.calls


class Normalised(nn.Module):
    """Batch normalisation behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x)))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Containers(nn.Module):
    """Inputs in nested containers, by position and by name."""

    def forward(self, pair: tuple[torch.Tensor, list[torch.Tensor]], *rest: torch.Tensor, **named: Any) -> torch.Tensor:
        total = pair[0] + pair[1][0]
        for value in rest:
            total = total + value
        return total * named["last"] + named["deep"]["k"]


class Assigning(nn.Module):
    """Assigns to a buffer and to plain attributes."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.state + x
        self.count += 1
        return self.state * 2


class Adding(nn.Module):
    """Adds its inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Shifted(nn.Module):
    """Needs inputs of which the second is one longer."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y[1:]


class Switching(nn.Module):
    """Switches gradients and casts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = self.linear(x).mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
        return y.float() * scale


class Deciding(nn.Module):
    """Its course depends on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if x.sum() > 0:
            y = y * x.shape[0]
        return y[y > 0]


class Losing(nn.Module):
    """Gives a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum()


# Programs with `assert`. They are here because pytest rewrites the asserts of test files, which this is not.


def asserting(x: Any, y: Any) -> Any:
    assert x.item() > 2
    return y + x.item()


def asserting_of_a_tensor(x: Any, y: Any) -> Any:
    assert x.sum() > 2, "too small"
    return y + 1
