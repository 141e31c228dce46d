"""A leaf and a view of it are given each other's data: an assertion.

Runtime: the epilogue expects the update wrapped, as it is for changed shapes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a):
    view = a.unsqueeze(0)
    a.data = view.detach()
    view.data = a.detach()


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
