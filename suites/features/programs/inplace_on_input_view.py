"""A view of an input is changed in place; the input shows it after the call."""

import torch

PROGRAM = {"tags": ("mutation", "aliasing"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x):
    row = x[1]
    row.add_(1)
    x.view(-1)[0] = 42
    return row * 2, x.sum()


def inputs(call):
    return (torch.randn(3, 2 + call, device=DEVICE),), {}
