"""Sequential, ModuleList, ModuleDict and ParameterDict nested in one another."""

# pyright: reportIndexIssue=false

import torch
from torch import nn

PROGRAM = {"tags": ("modules",), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Net(nn.Module):
    """Containers in containers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4, device=DEVICE), nn.GELU())
        self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 4, device=DEVICE)}) for _ in range(2))
        self.scales = nn.ParameterDict({name: nn.Parameter(torch.ones(4, device=DEVICE)) for name in ("b", "a")})

    def forward(self, x):
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = x + block["up"](x) * self.scales["ab"[index]]
        return x, len(self.blocks), sorted(self.scales.keys())


program = Net


def inputs(call):
    return (torch.randn(2, 4, device=DEVICE, requires_grad=True),), {}
