"""cat of a parameter with itself, expanded."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "inductor"),
    "rung": "inductor",
    "where": "lowering",
    "is_module": True,
    "calls": [{"grad_mode": "no_grad"}],
}
DEVICE = "cpu"


class Repeat(nn.Module):
    """No inputs: only a parameter of integers."""

    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.tensor([4, 4, 5, 5, 4, 4, 4, 7, 4], device=DEVICE), requires_grad=False)

    def forward(self):
        return torch.cat([self.values, self.values]).expand(1, 1, 1, 18)


program = Repeat


def inputs(call):
    return (), {}
