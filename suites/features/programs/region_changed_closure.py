"""What a nested compile region closes over changes between its calls."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("closures",), "calls": [{"backward": True}]}
DEVICE = "cpu"


factor = 1.0


@nested_compile_region
def block(x):
    return x * factor


def program(x, y):
    global factor
    factor = 2.0
    first = block(block(x))
    factor = 3.0
    return first + block(block(y))


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
