"""A slice of an intermediate is multiplied in place; the base shows it."""

import torch

PROGRAM = {"tags": ("mutation", "aliasing")}
DEVICE = "cpu"


def program(x):
    base = x.clone()
    part = base[1:3]
    part.mul_(2)
    base.t()[0].add_(100)
    return base, part


def inputs(call):
    return (torch.randn(4, 3, device=DEVICE),), {}
