"""A write through unfold() with one window, whose elements do not overlap: refused as overlapping.

Functionalization: the inverse of unfold.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a.unfold(1, 2, 1).mul_(2)
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x,), {}
