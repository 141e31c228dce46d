"""A result is set to the memory of an argument that is written afterwards: it has memory of its own.

Functionalization: the result is not taken for an alias of the argument.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    out = a.sin()
    out.set_(a.detach())
    a.add_(1)
    return out


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
