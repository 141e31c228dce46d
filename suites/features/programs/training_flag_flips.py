"""Batch norm under train(), eval(), train(): statistics move only while training."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("modules", "guards", "state"),
    "is_module": True,
    "calls": [
        {"training": True, "backward": True},
        {"training": False, "grad_mode": "no_grad"},
        {"training": True, "backward": True},
        {"training": False, "grad_mode": "no_grad"},
    ],
}
DEVICE = "cpu"


class Net(nn.Module):
    """Linear and batch norm, and a factor that depends on the flag."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3, device=DEVICE)
        self.norm = nn.BatchNorm1d(3, device=DEVICE)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y * 2 if self.training else y


program = Net


def inputs(call):
    return (torch.randn(6, 4, device=DEVICE) + call,), {}
