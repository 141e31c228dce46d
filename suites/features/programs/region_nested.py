"""A nested compile region calls another one."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def inner(x):
    return torch.sin(x) * 2


@nested_compile_region
def outer(x):
    return inner(x) * inner(torch.cos(x))


def program(x, y):
    return outer(x) + outer(y)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
