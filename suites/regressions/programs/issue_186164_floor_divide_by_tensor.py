"""int64 floor_divide of negative numbers by a 0-d tensor constant rounds down."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("untried", "gpu", "inductor", "integer"),
    "rung": "inductor",
    "where": "type of a constant in AOTInductor's lowering",
    "is_module": True,
    "calls": [{"grad_mode": "no_grad"}],
}
DEVICE = "cpu"


class Bucket(nn.Module):
    """Divides by a tensor that is a constant of the module."""

    def __init__(self):
        super().__init__()
        self.divisor = torch.tensor(3, dtype=torch.int64, device=DEVICE)

    def forward(self, x):
        return torch.floor_divide(x, self.divisor)


program = Bucket


def inputs(call):
    return (torch.arange(-7, 8, device=DEVICE),), {}
