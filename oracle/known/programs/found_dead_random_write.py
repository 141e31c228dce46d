"""An in-place random operator on an unused value still advances the generator."""

import torch

PROGRAM = {"tags": ("differs", "aot", "random", "mutation")}
DEVICE = "cpu"


def program(a):
    a.sum().uniform_()
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
