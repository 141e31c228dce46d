"""A parameter read through a plain list stays that parameter: it gets its gradient."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("differs", "export", "autograd"),
    "is_module": True,
    "calls": [{"backward": True}],
}
DEVICE = "cpu"


class Listed(nn.Module):
    """Uses its parameter through a list, as recurrent layers do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2, device=DEVICE))
        self.flat_weights = [self.weight]

    def forward(self, x):
        return x * self.flat_weights[0]


program = Listed


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE),), {}
