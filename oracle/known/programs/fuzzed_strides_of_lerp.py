"""Lerp of a transposed tensor with contiguous weights is contiguous; eager's is transposed.

Decompositions that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, b, weight):
    return torch.lerp(a, b, weight)


def inputs(call):
    return (torch.ones(2, 3, device=DEVICE).t(), torch.ones((), device=DEVICE), torch.ones(3, 2, device=DEVICE)), {}
