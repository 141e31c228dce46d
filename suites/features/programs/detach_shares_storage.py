"""A detached tensor is changed in place: the input changes with it."""

import torch

PROGRAM = {"tags": ("autograd", "aliasing", "mutation")}
DEVICE = "cpu"


def program(x):
    y = x.detach()
    y.mul_(2)
    return x + 1


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
