"""An argument is transposed in place beside a write to its memory, and then passed as `out=`: the result is not transposed.

Functionalization: a tensor passed as `out=` gets the strides of the new value, and is read with the old ones.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation", "strides")}
DEVICE = "cpu"


def program(a, b):
    c = torch.zeros(2, 2, device=DEVICE)
    a.transpose_(0, 1)
    b.neg_()
    torch.neg(a, out=c)
    return c


def inputs(call):
    memory = torch.arange(4.0, device=DEVICE)
    return (memory.view(2, 2), memory[:1]), {}
