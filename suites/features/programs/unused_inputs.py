"""Inputs that take no part keep no gradient; None goes through; one output needs no gradient."""

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, unused, nothing=None):
    return x * 2, nothing, (x.detach() > 0).sum(), x.shape[0]


def inputs(call):
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, device=DEVICE, requires_grad=True)), {}
