"""Nested torch.cond whose branches read a parameter and a buffer of the module."""

import torch
from torch import nn

PROGRAM = {"tags": ("export", "control-flow", "modules"), "is_module": True, "calls": [{}, {}, {}]}
DEVICE = "cpu"


class Gate(nn.Module):
    """Chooses by sum and mean of its input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4, device=DEVICE))
        self.register_buffer("offset", torch.full((4,), 0.5, device=DEVICE))

    def forward(self, x):
        def inner(t):
            return torch.cond(t.mean() > 1, lambda u: u * self.weight, lambda u: u + self.offset, (t,))

        return torch.cond(x.sum() > 0, inner, lambda t: t - self.weight, (x,))


program = Gate


def inputs(call):
    return (torch.full((2, 4), (2.0, 0.5, -1.0)[call], device=DEVICE),), {}
