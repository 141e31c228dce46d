"""`a.data = a[2:]` leaves the argument's shape as it was.

Analysis: the memory is the same, so that nothing is taken to be changed.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a.data = a[2:].detach()
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
