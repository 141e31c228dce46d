"""grad of a function with a no_grad block, called without grad mode."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "context")}
DEVICE = "cpu"


def program(x):
    def function(a):
        with torch.no_grad():
            fixed = a**2
        return (a**3 - fixed).sum()

    with torch.no_grad():
        return grad(function)(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
