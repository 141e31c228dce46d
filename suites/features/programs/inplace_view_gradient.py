"""In-place operations on views of a differentiable intermediate; the gradient goes round them."""

import torch

PROGRAM = {"tags": ("mutation", "aliasing", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    base = x * 1.0
    base[0].mul_(y)
    base[:, 1:].sin_()
    base.transpose(0, 1)[0].copy_(y[:2])
    return base.pow(2)


def inputs(call):
    x = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, device=DEVICE, requires_grad=True)), {}
