"""A tensor attribute of a module is rebound between the calls."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "capture", "guards"),
    "rung": "dynamo",
    "where": "guards",
    "is_module": True,
    "calls": [{}, {"before": "target.offset = torch.full((3,), 9.0, device=DEVICE)"}],
}
DEVICE = "cpu"


class Shift(nn.Module):
    """Adds a plain tensor attribute."""

    def __init__(self):
        super().__init__()
        self.offset = torch.ones(3, device=DEVICE)

    def forward(self, x):
        return x + self.offset


program = Shift


def inputs(call):
    return (torch.zeros(3, device=DEVICE),), {}
