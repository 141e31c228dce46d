"""A ParameterList is indexed, sliced and iterated."""

import torch
from torch import nn

PROGRAM = {"tags": ("modules",), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Net(nn.Module):
    """Weights in a list."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(3, 3, device=DEVICE)) for _ in range(3))

    def forward(self, x):
        for weight in self.weights[:2]:
            x = x @ weight
        return x + self.weights[-1].sum(), len(self.weights)


program = Net


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE, requires_grad=True),), {}
