"""A view of an argument and the argument are both written; gradients are counted that are not returned."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "autograd")}
DEVICE = "cpu"


def program(a, b):
    b *= 0.5
    a.sub_(a[:, :1].clone())


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x, x[1:]), {}
