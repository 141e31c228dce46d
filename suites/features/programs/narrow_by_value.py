"""A part of a tensor whose length is read from another tensor, and reductions of it."""

import torch

PROGRAM = {"tags": ("data-dependent", "shapes"), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(values, length):
    count = length.item()
    part = values.narrow(0, 0, count)
    return part.cumsum(0)[-1] + part.mean(0), count


def inputs(call):
    return (torch.randn(6, 2, device=DEVICE, requires_grad=True), torch.tensor((3, 5)[call], device=DEVICE)), {}
