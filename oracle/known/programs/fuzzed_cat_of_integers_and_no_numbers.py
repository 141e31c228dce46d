"""Cat of integers and of an empty float tensor with a gradient: refused.

Decomposition of cat: without the empty tensor, the result is an integer tensor that requires grad.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd", "integer")}
DEVICE = "cpu"


def program(a, b):
    return torch.cat([a, a, b], 1)


def inputs(call):
    return (torch.ones(1, 1, dtype=torch.int64, device=DEVICE), torch.ones(1, 0, device=DEVICE).requires_grad_()), {}
