"""Export refuses a size that varies as the length of an associative_scan."""

import torch
from torch._higher_order_ops.associative_scan import associative_scan

PROGRAM = {"tags": ("differs", "export", "shapes"), "sizes": {"x": {"0": ["steps", 3, 16]}}, "calls": [{}]}
DEVICE = "cpu"


def program(x):
    return associative_scan(lambda left, right: left * right, x, 0, combine_mode="generic")


def inputs(call):
    return (torch.ones(5, device=DEVICE),), {}
