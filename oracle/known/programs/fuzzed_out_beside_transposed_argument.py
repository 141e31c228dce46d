"""An argument is transposed in place beside a write to its memory; what then takes it by `out=` has its numbers untransposed.

Functionalization: a result given as `out=` takes the strides of what is written to it, and is read by those it had.
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
