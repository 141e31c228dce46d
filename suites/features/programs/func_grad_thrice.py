"""The third derivative, by grad of grad of grad."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    return grad(grad(grad(lambda a: a.sin() * a)))(x.sum())


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
