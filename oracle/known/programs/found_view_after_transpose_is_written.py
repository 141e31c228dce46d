"""A tensor is written through its transpose, and its flat view then cannot be made: raises.

Functionalization: the base gets the strides of the functional operator's result.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "random", "strides")}
DEVICE = "cpu"


def program(a):
    view = a.view(1, 4)
    a.mT.bernoulli_(0.5)
    return view


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x,), {}
