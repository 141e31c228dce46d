"""Outputs are views of an input, a transpose of it, and the input itself."""

import torch

PROGRAM = {"tags": ("aliasing",)}
DEVICE = "cpu"


def program(x):
    return x.view(-1), x.t(), x, x[1:, :2], x + 0


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
