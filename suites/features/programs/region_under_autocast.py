"""The same nested compile region within autocast and outside of it."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return x @ x.mT


def program(x, y):
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        low = block(x), block(y)
    return low, block(x), block(y)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
