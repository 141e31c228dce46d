"""A float, a bool and a tensor attribute of a module are rebound between the calls."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("modules", "guards"),
    "is_module": True,
    "calls": [
        {},
        {"before": "target.scale = 3.0"},
        {"before": "target.negate = True"},
        {"before": "target.offset = torch.full_like(target.offset, 5.0)"},
    ],
}
DEVICE = "cpu"


class Net(nn.Module):
    """Three plain attributes."""

    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.negate = False
        self.offset = torch.zeros(3, device=DEVICE)

    def forward(self, x):
        y = x * self.scale + self.offset
        return -y if self.negate else y


program = Net


def inputs(call):
    return (torch.tensor([1.0, 2.0, 3.0], device=DEVICE),), {}
