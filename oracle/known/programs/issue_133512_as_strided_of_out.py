"""`as_strided` of a tensor passed as `out=` reads elements in the order of the new value's strides, not of its memory.

Functionalization: the tensor gets the strides of the value that is written to it.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    b = torch.zeros(2, 2, device=DEVICE)
    torch.neg(a.t(), out=b)
    return b.as_strided((4,), (1,))


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).view(2, 2),), {}
