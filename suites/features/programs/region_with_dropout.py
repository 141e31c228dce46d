"""A nested compile region draws random numbers, others in each call."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd", "random"), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return torch.nn.functional.dropout(torch.sin(x), 0.5)


def program(x, y):
    return block(x) + block(y) * torch.rand_like(x)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
