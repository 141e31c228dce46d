"""Two projections multiplied, chunked and added, under bfloat16 autocast."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "precision", "dtype"),
    "rung": "inductor",
    "where": "fusion precision; reported for a GPU and 128 channels, here 32",
    "is_module": True,
    "calls": [{"training": False, "grad_mode": "no_grad"}],
}
DEVICE = "cpu"


class Gated(nn.Module):
    """Half plus half of a product of two linear layers."""

    def __init__(self, channels=32):
        super().__init__()
        self.value = nn.Linear(channels, 2 * channels, bias=False, device=DEVICE)
        self.gate = nn.Linear(channels, 2 * channels, bias=False, device=DEVICE)

    def forward(self, x):
        with torch.autocast(DEVICE.split(":")[0], dtype=torch.bfloat16):
            first, second = torch.chunk(self.value(x) * self.gate(x), 2, dim=-1)
            return first + second


program = Gated


def inputs(call):
    return (torch.randn(1, 24, 24, 32, device=DEVICE),), {}
