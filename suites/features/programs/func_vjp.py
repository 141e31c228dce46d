"""vjp of a function of two tensors; the product function is called twice."""

import torch
from torch.func import vjp

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x, y):
    found = vjp(lambda a, b: (a * b, (a + b).sum()), x, y)
    out, product = found[0], found[1]
    return out, product(out), product((x, torch.ones((), device=DEVICE)))


def inputs(call):
    return (
        torch.randn(4, device=DEVICE),
        torch.randn(4, device=DEVICE),
    ), {}
