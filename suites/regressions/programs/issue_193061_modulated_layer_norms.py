"""Chained modulated layer norms share one scale and shift table; its gradient needs every slice."""

import torch
import torch.nn.functional as F
from torch import nn

PROGRAM = {
    "tags": ("untried", "gpu", "inductor", "autograd"),
    "rung": "inductor",
    "where": "mix-order reduction",
    "is_module": True,
    "calls": [{"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


class Block(nn.Module):
    """Two modulated norms in a row; shift and scale of both are slices of one parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4, 1536, device=DEVICE) * 0.02)

    def forward(self, x):
        shift_a, scale_a, shift_b, scale_b = self.table.chunk(4, dim=1)
        x = F.layer_norm(x, x.shape[-1:]) * (1 + scale_a) + shift_a
        return F.layer_norm(x, x.shape[-1:]) * (1 + scale_b) + shift_b


program = Block


def inputs(call):
    return (torch.randn(1, 4096, 1536, device=DEVICE, requires_grad=True),), {}
