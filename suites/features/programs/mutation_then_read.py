"""An input is read, changed, read again: the first read keeps the old values."""

import torch

PROGRAM = {"tags": ("mutation",)}
DEVICE = "cpu"


def program(x):
    before = x + 0
    view = x[:2]
    x.zero_()
    x.add_(3)
    return before, view * 1, x * 2


def inputs(call):
    return (torch.randn(4, device=DEVICE),), {}
