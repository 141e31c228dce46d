"""A written argument's conjugate, another argument, is read as if it were not conjugated.

Synthetic base: the conjugate is made again by sizes and strides.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "dtype")}
DEVICE = "cpu"


def program(a, b):
    a.mul_(2)
    return b * 2


def inputs(call):
    return (torch.complex(torch.arange(4.0, device=DEVICE), torch.ones(4, device=DEVICE)),), {}


def derive(x):
    return (x, x.conj()), {}
