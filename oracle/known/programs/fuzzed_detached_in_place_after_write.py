"""A result is written and detached in place beside a view of it: an internal assertion of autograd.

Functionalization: the view is regenerated from the detached result.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    c = b.view(4)
    b.neg_()
    b.detach_()
    return c


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).requires_grad_(),), {}
