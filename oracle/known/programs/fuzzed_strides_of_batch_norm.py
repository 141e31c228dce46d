"""Batch_norm of a transposed tensor is transposed; eager's is contiguous.

Decompositions that do not keep eager's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, mean, variance):
    return F.batch_norm(a, mean, variance)


def inputs(call):
    a = torch.arange(6.0, device=DEVICE).reshape(3, 2).t()
    return (a, torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)), {}
