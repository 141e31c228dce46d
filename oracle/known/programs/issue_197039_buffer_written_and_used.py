"""`self.steps.add_(1); return a * self.steps`: the gradient is that of steps + 2.

Partitioner: backward recomputes the new value from the buffer, which the call has already updated.
"""

import torch
from torch import nn

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Counter(nn.Module):
    """a times the number of the call."""

    steps: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), device=DEVICE))

    def forward(self, a):
        self.steps.add_(1)
        return a * self.steps


program = Counter


def inputs(call):
    return (torch.ones(1, device=DEVICE).requires_grad_(),), {}
