"""masked_fill_ of a transposed result makes it contiguous.

Functionalization: an in-place result takes the layout of the functional operator.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    out = a * 2
    out.masked_fill_(a > 0, 0.5)
    return out


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x.mT,), {}
