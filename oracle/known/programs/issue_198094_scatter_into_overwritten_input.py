"""slice_scatter makes a new tensor, which must not change when its source is zeroed afterwards."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "mutation")}
DEVICE = "cpu"


def program(x, source):
    y = torch.slice_scatter(x, source[1:3], dim=0, start=1, end=3)
    x.zero_()
    return y


def inputs(call):
    x = torch.arange(24, device=DEVICE).reshape(4, 6)
    return (x, -1 - x), {}
