"""Put into a transposed tensor is contiguous; eager's is transposed.

Decompositions that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, index):
    return torch.put(a, index, index)


def inputs(call):
    a = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    return (a.t(), torch.tensor([1], device=DEVICE)), {}
