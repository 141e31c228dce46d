"""A view of a transposed argument keeps its strides when another argument writes to the memory."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "strides")}
DEVICE = "cpu"


def program(a, b):
    a.fill_(0.5)
    return b.narrow(1, 0, 2)


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x, x.mT), {}
