"""A submodule is called twice, another is registered under two names, and a third is never called."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("export", "modules"),
    "is_module": True,
    "sizes": {"x": {"0": ["batch", 2, 16]}},
    "calls": [{"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


class Shared(nn.Module):
    """Submodules that an unflattened program must keep apart."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4, device=DEVICE), nn.Tanh())
        self.layers = nn.ModuleList([nn.Linear(4, 4, device=DEVICE) for _ in range(2)])
        self.alias = self.layers[0]
        self.idle = nn.Linear(2, 2, device=DEVICE)

    def forward(self, x):
        x = self.block(self.block(x))
        for layer in self.layers:
            x = layer(x).relu()
        return self.alias(x) + x.shape[0]


program = Shared


def inputs(call):
    return (torch.randn((3, 5)[call], 4, device=DEVICE),), {}
