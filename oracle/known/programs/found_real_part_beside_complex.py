"""A complex argument and its imaginary part, one of which is written."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "dtype")}
DEVICE = "cpu"


def program(a, b):
    a.copy_(b)
    return b * 2


def inputs(call):
    return (torch.complex(torch.arange(4.0, device=DEVICE), -torch.arange(4.0, device=DEVICE)),), {}


def derive(x):
    return (x, x.imag), {}
