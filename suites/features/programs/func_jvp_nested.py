"""jvp of jvp, and jvp of grad."""

import torch
from torch.func import grad, jvp

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    second = jvp(lambda a: jvp(torch.sin, (a,), (torch.ones_like(a),))[1], (x,), (torch.ones_like(x),))
    return second, jvp(grad(lambda a: (a**3).sum()), (x,), (x,))


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
