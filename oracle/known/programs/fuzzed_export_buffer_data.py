"""`self.b.data * x`: the exported module returns a fake tensor.

Strict capture: `data` of a buffer becomes a constant that is a fake tensor.
"""

import torch
from torch import nn

PROGRAM = {"tags": ("differs", "export"), "is_module": True, "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


class Scaling(nn.Module):
    """x times the data of a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3, device=DEVICE))

    def forward(self, x):
        return self.scale.data * x


program = Scaling


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
