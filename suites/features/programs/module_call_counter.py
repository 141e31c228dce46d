"""A module counts its calls and uses the count as a factor and as an index."""

import torch
from torch import nn

PROGRAM = {"tags": ("modules", "state"), "is_module": True, "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


class Counting(nn.Module):
    """Keeps the results of its last calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.last = [None, None, None]

    def forward(self, x):
        self.calls += 1
        y = x * self.calls
        self.last[self.calls % 3] = y.sum()
        return y, self.calls, [value is None for value in self.last]


program = Counting


def inputs(call):
    return (torch.randn(2, device=DEVICE),), {}
