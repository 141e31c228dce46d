"""Buffers of two submodules are assigned new tensors, one by way of the other."""

import torch
from torch import nn

PROGRAM = {"tags": ("export", "modules", "state"), "is_module": True, "calls": [{}, {}]}
DEVICE = "cpu"


class Last(nn.Module):
    """Remembers its last input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, device=DEVICE))

    def forward(self, x):
        result = x - self.last
        self.last = x * 1.0
        return result


class Two(nn.Module):
    """Two of them in a row."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Last(), Last()

    def forward(self, x):
        return self.second(self.first(x)) + self.first.last


program = Two


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
