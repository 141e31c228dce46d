"""An attribute is a row of a buffer, chosen anew before each call and written by the call."""

# pyright: reportIndexIssue=false

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "capture", "guards", "mutation"),
    "rung": "dynamo",
    "where": "guards",
    "is_module": True,
    "calls": [{}, {"before": "target.row = target.rows[1]"}, {"before": "target.row = target.rows[2]"}],
}
DEVICE = "cpu"


class Cache(nn.Module):
    """Writes into the row that is selected."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, 4, device=DEVICE))
        self.row = self.rows[0]

    def forward(self, x):
        self.row.copy_(x)
        return self.row * 2


program = Cache


def inputs(call):
    return (torch.full((4,), float(call + 1), device=DEVICE),), {}
