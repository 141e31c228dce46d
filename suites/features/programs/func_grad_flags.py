"""The function that grad differentiates asks whether its argument requires grad."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    seen = []

    def function(a):
        seen.append((a.requires_grad, (a * 2).requires_grad))
        return a.sin().sum()

    return grad(function)(x), seen


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
