"""A write through detach() of a view of a leaf, by the view itself."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a):
    a.detach().mul_(a)
    return a * 2


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x.as_strided((2, 2), (2, 1), 1),), {}
