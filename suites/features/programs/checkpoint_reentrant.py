"""A reentrant checkpoint of tensors that require gradients."""

import torch
from torch.utils.checkpoint import checkpoint

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    return checkpoint(lambda a, b: torch.tanh(a * b), x, y, use_reentrant=True) + x


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
