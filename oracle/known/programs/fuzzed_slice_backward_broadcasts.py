"""Slice_backward of a gradient that is broadcast: refused.

Decomposition of slice_backward: slice_scatter, which does not broadcast.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd")}
DEVICE = "cpu"


def program(gradient):
    return torch.ops.aten.slice_backward(gradient, [4, 3], 0, 0, 2, 1)


def inputs(call):
    return (torch.ones(1, device=DEVICE),), {}
