"""A submodule is replaced, a parameter is replaced, a layer is deleted between the calls."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("modules", "guards"),
    "is_module": True,
    "calls": [
        {},
        {"before": "target.first = nn.Tanh()"},
        {"before": "target.second.weight = nn.Parameter(torch.ones_like(target.second.weight))"},
        {"before": "target.extra = None"},
    ],
}
DEVICE = "cpu"


class Net(nn.Module):
    """Three layers, the last one optional."""

    def __init__(self):
        super().__init__()
        self.first = nn.ReLU()
        self.second = nn.Linear(3, 3, device=DEVICE)
        self.extra = nn.Linear(3, 2, device=DEVICE)

    def forward(self, x):
        y = self.second(self.first(x))
        return y if self.extra is None else self.extra(y)


program = Net


def inputs(call):
    return (torch.tensor([[1.0, -2.0, 3.0]], device=DEVICE),), {}
