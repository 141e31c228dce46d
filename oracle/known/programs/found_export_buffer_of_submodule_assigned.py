"""Non-strict export drops an assignment to a buffer of a submodule."""

import torch
from torch import nn

PROGRAM = {"tags": ("differs", "export", "mutation"), "is_module": True, "calls": [{}]}
DEVICE = "cpu"


class Last(nn.Module):
    """Remembers its last input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, device=DEVICE))

    def forward(self, x):
        self.last = x * 1.0
        return x + 1


def program():
    return nn.Sequential(Last())


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
