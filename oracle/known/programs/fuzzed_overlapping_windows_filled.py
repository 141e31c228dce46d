"""Overlapping windows of an argument are filled with one number: refused.

Functionalization: the inverse of unfold refuses every write to elements that share memory.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a.unfold(0, 2, 1).fill_(0)
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}
