"""The largest number of each column of no matrices, the dimension counted from the end: refused.

Decomposition of vector_norm, also for fake tensors: a negative dimension counts as an empty one.
"""

import torch

PROGRAM = {"tags": ("differs", "capture")}
DEVICE = "cpu"


def program(a):
    return torch.linalg.vector_norm(a, float("inf"), dim=-2)


def inputs(call):
    return (torch.ones(0, 3, 2, device=DEVICE),), {}
