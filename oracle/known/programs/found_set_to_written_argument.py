"""A result's `data` is set to an argument that is written afterwards: the result does not share its memory.

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
