"""floor_divide of a transposed and a contiguous tensor is contiguous; eager's is transposed.

Lowerings that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, b):
    return torch.floor_divide(a, b)


def inputs(call):
    return (torch.ones(2, 3, device=DEVICE).t(), torch.ones(3, 2, device=DEVICE)), {}
