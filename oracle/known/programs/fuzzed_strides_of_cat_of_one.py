"""cat of one transposed tensor is transposed; eager's is contiguous.

Decompositions that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.cat([a])


def inputs(call):
    return (torch.ones(3, 2, device=DEVICE).t(),), {}
