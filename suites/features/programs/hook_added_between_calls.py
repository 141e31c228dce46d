"""A forward hook is registered after the first call and removed after the second."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("hooks", "guards"),
    "is_module": True,
    "calls": [
        {},
        {"before": "handle = target.layer.register_forward_hook(lambda module, args, output: output + 100)"},
        {"before": "handle.remove()"},
    ],
}
DEVICE = "cpu"


class Net(nn.Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, device=DEVICE)

    def forward(self, x):
        return self.layer(x) * 2


program = Net


def inputs(call):
    return (torch.ones(1, 3, device=DEVICE),), {}
