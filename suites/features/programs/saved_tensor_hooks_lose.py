"""Hooks give zeros in place of what a product has saved: that part of the gradient is zero."""

import torch
from torch.autograd.graph import saved_tensors_hooks

PROGRAM = {"tags": ("autograd", "hooks"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    with saved_tensors_hooks(lambda tensor: tensor, torch.zeros_like):
        square = x * x
    return square + 3 * x


def inputs(call):
    return (torch.randn(4, device=DEVICE, requires_grad=True),), {}
