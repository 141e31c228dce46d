"""Every second column of a Jacobian by jacfwd, with dynamic shapes, times a row: reads wrong elements.

Lowering of the product: an index that depends on symbolic sizes.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "memory", "shapes"), "dynamic": True}
DEVICE = "cpu"


def square(x):
    return x * x


def program(a, row):
    return torch.matmul(torch.func.jacfwd(square)(a)[..., 1::2], row)


def inputs(call):
    return (torch.tensor([0.0, 0.5], device=DEVICE), torch.arange(1.0, 17.0, device=DEVICE).reshape(1, 16)), {}
