"""object.__setattr__ stores a module in __dict__, which hides the registered submodule."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "is_module": True,
    "calls": [
        {"grad_mode": "no_grad"},
        {"grad_mode": "no_grad", "before": "object.__setattr__(target, 'inner', scaling(5.0))"},
    ],
}
DEVICE = "cpu"


def scaling(factor):
    layer = nn.Linear(4, 4, bias=False, device=DEVICE)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4) * factor)
    return layer


class Outer(nn.Module):
    """Calls `inner`, wherever attribute look-up finds it."""

    def __init__(self):
        super().__init__()
        self.inner = scaling(1.0)

    def forward(self, x):
        return self.inner(x)


program = Outer


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}
