"""Hooks on an intermediate and on an input change gradients."""

import torch

PROGRAM = {"tags": ("hooks", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, w):
    y = x * w
    y.register_hook(lambda gradient: gradient * 3)
    return torch.sin(y) + x


def inputs(call):
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(4, device=DEVICE, requires_grad=True)), {}
