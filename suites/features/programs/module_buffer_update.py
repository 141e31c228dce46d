"""A buffer counts and averages over the calls, in place and by assignment."""

import torch
from torch import nn

PROGRAM = {"tags": ("modules", "state", "mutation"), "is_module": True, "calls": [{}, {}, {}]}
DEVICE = "cpu"


class Average(nn.Module):
    """A running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=DEVICE))
        self.register_buffer("mean", torch.zeros(4, device=DEVICE))

    def forward(self, x):
        self.count += 1
        self.mean = self.mean + (x - self.mean) / self.count
        return self.mean * 2


program = Average


def inputs(call):
    return (torch.randn(4, device=DEVICE) + call,), {}
