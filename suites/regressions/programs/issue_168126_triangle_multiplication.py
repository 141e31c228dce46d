"""Triangle multiplication under bfloat16 autocast: no further from fp64 than eager is."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "precision", "dtype"),
    "rung": "aot_eager",
    "where": "decomposition and fusion precision; reported for a GPU and 128 channels, here 32",
    "is_module": True,
    "calls": [{"training": False, "grad_mode": "no_grad"}],
}
DEVICE = "cpu"


class TriangleMultiplication(nn.Module):
    """Outgoing edges of a pair representation (batch, i, j, channels)."""

    def __init__(self, channels=32):
        super().__init__()
        self.norm_in = nn.LayerNorm(channels, device=DEVICE)
        self.value_in = nn.Linear(channels, 2 * channels, bias=False, device=DEVICE)
        self.gate_in = nn.Linear(channels, 2 * channels, bias=False, device=DEVICE)
        self.norm_out = nn.LayerNorm(channels, device=DEVICE)
        self.value_out = nn.Linear(channels, channels, bias=False, device=DEVICE)
        self.gate_out = nn.Linear(channels, channels, bias=False, device=DEVICE)

    def forward(self, x, mask):
        with torch.autocast(DEVICE.split(":")[0], dtype=torch.bfloat16):
            x = self.norm_in(x)
            gate = x
            x = self.value_in(x) * self.gate_in(x).sigmoid() * mask.unsqueeze(-1)
            left, right = torch.chunk(x.float(), 2, dim=-1)
            x = torch.einsum("bikd,bjkd->bijd", left, right)
            return self.value_out(self.norm_out(x)) * self.gate_out(gate).sigmoid()


program = TriangleMultiplication


def inputs(call):
    return (torch.randn(1, 12, 12, 32, device=DEVICE), torch.ones(1, 12, 12, device=DEVICE)), {}
