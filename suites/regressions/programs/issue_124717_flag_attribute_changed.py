"""A bool attribute switches an adapter off between the calls."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "capture", "guards"),
    "rung": "dynamo",
    "where": "guards",
    "is_module": True,
    "calls": [{}, {"before": "target.is_disabled = True"}, {"before": "target.is_disabled = False"}],
}
DEVICE = "cpu"


class Adapter(nn.Module):
    """Adds one unless disabled."""

    def __init__(self):
        super().__init__()
        self.is_disabled = False

    def forward(self, x):
        squared = x * x
        return squared if self.is_disabled else squared + 1


program = Adapter


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}
