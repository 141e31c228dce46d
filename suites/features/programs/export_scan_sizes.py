"""A scan over a dimension whose size varies, with a carry of a size that varies."""

import torch
from torch._higher_order_ops.scan import scan

PROGRAM = {
    "tags": ("export", "control-flow", "functional", "shapes"),
    "sizes": {"x": {"0": ["steps", 3, 16], "1": ["width", 3, 16]}, "start": {"0": ["width", 3, 16]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, start):
    def step(carry, row):
        following = carry * 0.5 + row
        return following, following.sin() * x.shape[1]

    return scan(step, start, x)


def inputs(call):
    steps, width = ((5, 3), (3, 6), (8, 4))[call]
    return (torch.randn(steps, width, device=DEVICE), torch.randn(width, device=DEVICE)), {}
