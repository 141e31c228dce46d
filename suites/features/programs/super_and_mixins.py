"""Diamond inheritance of modules with super() and a mixin's attribute."""

import torch
from torch import nn

PROGRAM = {"tags": ("classes", "modules"), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Base(nn.Module):
    """A linear layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, device=DEVICE)

    def forward(self, x):
        return self.linear(x)


class Scaled(Base):
    """Twice the base."""

    def forward(self, x):
        return super().forward(x) * 2


class Shifted(Base):
    """The base plus one."""

    def forward(self, x):
        return super().forward(x) + 1


class Both(Scaled, Shifted):
    """Scaled before shifted."""


program = Both


def inputs(call):
    return (torch.randn(2, 4, device=DEVICE, requires_grad=True),), {}
