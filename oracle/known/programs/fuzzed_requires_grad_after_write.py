"""A result is written in place, then requires_grad_ of it: what the write returned requires none.

Functionalization: what the write returned is another value than what was written.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    c = b.neg_()
    b.requires_grad_()
    return c


def inputs(call):
    return (torch.ones(2, device=DEVICE),), {}
