"""A column of what was computed from a transposed tensor has the strides of a contiguous one's column.

Layout of values that are no outputs: a view of one that is returned has strides that follow from it.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.neg(a).select(1, 2)


def inputs(call):
    return (torch.arange(12.0, device=DEVICE).reshape(4, 3).t(),), {}
