"""Rrelu of a transposed tensor, without training, is transposed; eager's is contiguous.

Decomposition of rrelu: leaky_relu.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    return F.rrelu(a)


def inputs(call):
    return (torch.ones(2, 3, device=DEVICE).t(),), {}
