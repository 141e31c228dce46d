"""Exported on (x, x), then called on (x, y): both placeholders must stay apart."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("differs", "export", "aliasing"),
    "is_module": True,
    "calls": [{"grad_mode": "no_grad"}, {"grad_mode": "no_grad"}],
}
DEVICE = "cpu"


class Difference(nn.Module):
    """x - 2 y."""

    def forward(self, x, y):
        return x - 2 * y


program = Difference


def inputs(call):
    x = torch.arange(4.0, device=DEVICE)
    return (x, x if call == 0 else torch.full((4,), 10.0, device=DEVICE)), {}
