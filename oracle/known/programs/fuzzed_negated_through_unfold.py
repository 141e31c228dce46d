"""Zeros are negated through `unfold`, and stay as they are; eager has -0.

Decomposition of `unfold_backward`, with which a write to the windows is brought back: it adds to zeros.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    windows = a.unfold(0, 2, 2)
    windows.neg_()
    return windows


def inputs(call):
    return (torch.zeros(4, device=DEVICE),), {}
