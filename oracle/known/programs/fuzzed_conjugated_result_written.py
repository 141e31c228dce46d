"""A conjugated result is written in place, and loses the conjugate bit.

Functionalization: the new value is computed without it.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "dtype")}
DEVICE = "cpu"


def program(a):
    out = (a * 2).conj()
    out.neg_()
    return out


def inputs(call):
    return (torch.complex(torch.arange(4.0, device=DEVICE), torch.ones(4, device=DEVICE)),), {}
