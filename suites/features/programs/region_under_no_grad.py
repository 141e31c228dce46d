"""The same nested compile region with gradients and without."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return torch.sin(x)


def program(x, y):
    with torch.no_grad():
        still = block(x) + block(y)
    return block(x) * block(y), still


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
