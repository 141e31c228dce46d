"""Zeros that are negated through `unfold` stay 0; in eager they become -0.

Decomposition of `unfold_backward`, which writes the windows back to the base: it adds to zeros.
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
