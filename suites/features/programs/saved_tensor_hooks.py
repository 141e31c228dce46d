"""Hooks on saved tensors in a part of the program: the gradient of that part is computed from what was packed."""

import torch
from torch.autograd.graph import saved_tensors_hooks

PROGRAM = {"tags": ("autograd", "hooks"), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x, w):
    with saved_tensors_hooks(lambda tensor: tensor.round(decimals=1), lambda tensor: tensor * 2):
        y = x * w
    return y.sin() + x


def inputs(call):
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, device=DEVICE, requires_grad=True)), {}
