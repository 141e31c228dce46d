"""`return a.data, a.data` returns one object twice.

Capture: the attribute is read once.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "aliasing")}
DEVICE = "cpu"


def program(a):
    return a.data, a.data


def inputs(call):
    return (torch.arange(2.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
