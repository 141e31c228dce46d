"""Lift_fresh_copy of a transposed tensor is transposed; eager's is contiguous.

Functionalization: a clone.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.ops.aten.lift_fresh_copy(a)


def inputs(call):
    return (torch.ones(2, 3, device=DEVICE).t(),), {}
