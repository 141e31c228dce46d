"""An associative_scan of pairs over a dimension whose size varies."""

import torch
from torch._higher_order_ops.associative_scan import associative_scan

PROGRAM = {
    "tags": ("export", "functional", "shapes"),
    "sizes": {"x": {"0": ["steps", 3, 16]}, "y": {"0": ["steps", 3, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, y):
    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    return associative_scan(combine, (x, y), 0, combine_mode="generic")


def inputs(call):
    steps = (5, 3, 8)[call]
    return (torch.rand(steps, 2, device=DEVICE), torch.randn(steps, 2, device=DEVICE)), {}
