"""The real part of a conjugated argument that was written: raises.

Functionalization: the wrapper has the conjugate bit, and its new value has not.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "dtype")}
DEVICE = "cpu"


def program(a):
    a.mul_(2)
    return a.real * 2


def inputs(call):
    return (torch.complex(torch.arange(4.0, device=DEVICE), torch.ones(4, device=DEVICE)),), {}


def derive(x):
    return (x.conj(),), {}
