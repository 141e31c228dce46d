"""A tensor written through its conjugate is returned with the conjugate bit set.

Functionalization: the inverse of conj() is lazy, and its result becomes the value of the base.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "dtype")}
DEVICE = "cpu"


def program(a):
    out = a * 2
    out.conj().add_(1)
    return out


def inputs(call):
    return (torch.complex(torch.arange(4.0, device=DEVICE), torch.ones(4, device=DEVICE)),), {}


def derive(x):
    return (x,), {}
