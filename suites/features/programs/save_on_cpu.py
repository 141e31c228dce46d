"""Saved tensors are kept on the processor; values and gradients are those without."""

import torch
from torch.autograd.graph import save_on_cpu

PROGRAM = {"tags": ("autograd", "hooks"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, w):
    with save_on_cpu():
        y = torch.tanh(x @ w)
    return (y * y).sum(dim=1)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(4, 2, device=DEVICE, requires_grad=True)), {}
