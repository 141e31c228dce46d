"""grad of a function of a closed-over tensor that requires grad; an outer backward sees it."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    weight = torch.linspace(-1, 1, 4, device=DEVICE).requires_grad_()
    inner = grad(lambda a: ((a * weight) ** 2).sum())(x)
    (outer,) = torch.autograd.grad(inner.sum(), weight)
    return inner.detach(), outer


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
