"""associative_scan of pairs, along both dimensions, forwards and in reverse."""

import torch
from torch._higher_order_ops.associative_scan import associative_scan

PROGRAM = {"tags": ("functional", "control-flow")}
DEVICE = "cpu"


def program(x):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    first = associative_scan(combine, (x, x.cos()), 0, combine_mode="generic")
    return first, associative_scan(torch.add, x, 1, reverse=True, combine_mode="generic")


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
