"""grad_and_value with a nested auxiliary result."""

import torch
from torch.func import grad_and_value

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    return grad_and_value(lambda a: (a.exp().sum(), {"log": a.log1p(), "k": (a * 2,)}), has_aux=True)(x)


def inputs(call):
    return (torch.rand(3, 4, device=DEVICE),), {}
