"""Xlogy of a contiguous and a transposed tensor has the transposed one's strides.

Decompositions that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, b):
    return torch.xlogy(a, b)


def inputs(call):
    return (torch.ones(3, 2, device=DEVICE), torch.ones(2, 3, device=DEVICE).t()), {}
