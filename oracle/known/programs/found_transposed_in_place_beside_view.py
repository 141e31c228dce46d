"""A result is transposed in place after a column of it was taken: raises.

Functionalization: the column is regenerated from the transposed result.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a):
    copy = a.clone()
    view = copy[:, 0]
    copy.t_()
    return view


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).reshape(4, 2).requires_grad_(),), {}


def derive(x):
    return (x,), {}
