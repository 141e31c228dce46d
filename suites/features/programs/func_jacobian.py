"""jacrev, jacfwd and hessian of a small function."""

import torch
from torch.func import hessian, jacfwd, jacrev

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def field(x):
    return torch.stack([x[0] * x[1], torch.sin(x[1]), x[0] ** 3])


def program(x):
    return jacrev(field)(x), jacfwd(field)(x), hessian(lambda y: field(y).sum())(x)


def inputs(call):
    return (torch.tensor([0.5, -1.5], device=DEVICE),), {}
