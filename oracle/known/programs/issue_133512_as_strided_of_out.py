"""`as_strided` of a result that was given as `out=`: in the order of the values that were written, not of the memory.

Functionalization: the result takes the strides of what is written to it.
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
