"""A module counts in a buffer, and an argument with a gradient is written into another: the result is the buffer.

Joint graph: outputs that are arguments are inserted by position, as in found/output_among_updated_arguments.
"""

import torch
from torch import nn

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "is_module": True}
DEVICE = "cpu"


class Counting(nn.Module):
    """Its second argument, ten times; it is copied into the first one."""

    steps: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.ones(2, device=DEVICE))

    def forward(self, a, b):
        self.steps += 1
        a.copy_(b)
        return b * 10


program = Counting


def inputs(call):
    return (torch.zeros(2, device=DEVICE), torch.ones(2, device=DEVICE).requires_grad_()), {}
