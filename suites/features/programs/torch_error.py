"""A shape error raised by an operator reaches the caller."""

import torch

PROGRAM = {"tags": ("exceptions", "shapes"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


def program(x, y):
    return x @ y


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE), torch.randn(3 + call, 2, device=DEVICE)), {}
