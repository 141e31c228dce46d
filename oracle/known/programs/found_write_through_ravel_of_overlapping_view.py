"""A write through ravel() of a view of an argument whose rows overlap."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "strides")}
DEVICE = "cpu"


def program(b):
    column = b.permute(1, 0).narrow(0, 1, 1)
    column.ravel().add_(0.5)
    return column


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x.as_strided((2, 2), (1, 1)),), {}
