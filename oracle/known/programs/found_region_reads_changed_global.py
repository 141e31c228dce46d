"""A region that reads a global runs with the value of its first call in the same graph."""

import torch

PROGRAM = {"tags": ("differs", "capture", "guards")}
DEVICE = "cpu"
scale = 2.0


@torch.compiler.nested_compile_region
def region(x):
    return x * scale


def program(x):
    global scale
    scale = 2.0
    first = region(x)
    scale = 3.0
    return first, region(x)


def inputs(call):
    return (torch.full((2,), 1.5, device=DEVICE),), {}
