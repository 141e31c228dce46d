"""A view of an argument is written and the argument returned: eager returns the argument itself."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a, b):
    b.abs_()
    return a


def inputs(call):
    return (torch.arange(-2.0, 2.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x, x[1:]), {}
