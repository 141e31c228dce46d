"""A second derivative: the gradient's norm is part of what is differentiated."""

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, w):
    y = torch.tanh(x @ w).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return y + gradient.pow(2).sum()


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(4, 2, device=DEVICE, requires_grad=True)), {}
