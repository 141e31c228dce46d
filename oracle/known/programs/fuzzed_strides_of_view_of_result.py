"""A column of a result computed from a transposed tensor has the strides of a contiguous tensor's column.

Layout of intermediate buffers: the returned view has strides that follow from its buffer's.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.neg(a).select(1, 2)


def inputs(call):
    return (torch.arange(12.0, device=DEVICE).reshape(4, 3).t(),), {}
