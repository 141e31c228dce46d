"""masked_fill_ of a transposed result makes it contiguous.

Functionalization: the result of an in-place operator has the strides of the functional operator's result.
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
