"""Tensors that are plain attributes, in a list of the module, and made in the program become constants."""

import torch
from torch import nn

PROGRAM = {"tags": ("export", "modules"), "is_module": True, "calls": [{}, {}]}
DEVICE = "cpu"


class Scales(nn.Module):
    """Has tensors that are no buffers."""

    def __init__(self):
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
        self.steps = [torch.ones(3, device=DEVICE), self.scale]

    def forward(self, x):
        made = torch.tensor([0.5, 0.25, 0.125], device=DEVICE)
        return x * self.scale + self.steps[0] - self.steps[1] * made


program = Scales


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE),), {}
