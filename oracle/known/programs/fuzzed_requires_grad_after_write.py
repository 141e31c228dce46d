"""`requires_grad_` of a result after an in-place write: the tensor that the write returned does not require grad.

Functionalization: the write returns another tensor than its argument.
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
