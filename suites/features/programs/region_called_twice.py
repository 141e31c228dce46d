"""A nested compile region is called twice, with the results of the first call."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x, y):
    return torch.tanh(x * y)


def program(x, y):
    return block(block(x, y), y)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
