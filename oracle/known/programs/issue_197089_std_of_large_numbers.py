"""Std and var overflow where eager's do not.

Decomposition: squares in the tensor's dtype; eager accumulates in double.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "precision")}
DEVICE = "cpu"


def program(x):
    return torch.std(x)


def inputs(call):
    return (torch.tensor([1e20, -1e20, 1e20, 0.0], device=DEVICE),), {}
