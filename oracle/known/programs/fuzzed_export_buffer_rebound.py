"""`self.b = self.b * 2` of a buffer: the exported module keeps the old one.

Strict capture: assignments to buffers.
"""

import torch
from torch import nn

PROGRAM = {"tags": ("differs", "export", "mutation"), "is_module": True, "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


class Doubling(nn.Module):
    """x plus a buffer that doubles."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3, device=DEVICE))

    def forward(self, x):
        self.scale = self.scale * 2
        return x + self.scale


program = Doubling


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
