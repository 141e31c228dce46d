"""grad with respect to two of three arguments."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x, y):
    return grad(lambda a, b, c: (a * b.sin() * c).sum(), argnums=(0, 1))(x, y, 3.0)


def inputs(call):
    return (
        torch.randn(4, device=DEVICE),
        torch.randn(4, device=DEVICE),
    ), {}
