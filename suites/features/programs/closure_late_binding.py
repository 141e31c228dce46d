"""Lambdas made in a loop see the loop variable's last value; default arguments keep each one."""

import torch

PROGRAM = {"tags": ("closures",)}
DEVICE = "cpu"


def program(x):
    late = [lambda y: y + i for i in range(3)]  # noqa: B023 - late binding is what is checked
    early = [lambda y, i=i: y * (i + 1) for i in range(3)]
    return [f(x) for f in late] + [f(x) for f in early]


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
