"""Logsigmoid of a transposed tensor is transposed; eager's is contiguous.

Decompositions that do not keep eager's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return F.logsigmoid(a)


def inputs(call):
    return (torch.ones(2, 3, device=DEVICE).t(),), {}
