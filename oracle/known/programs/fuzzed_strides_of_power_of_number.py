"""A number to the power of a transposed tensor is transposed; eager's is contiguous.

Lowering of pow.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.pow(2.0, a)


def inputs(call):
    return (torch.ones(3, 2, device=DEVICE).t(),), {}
