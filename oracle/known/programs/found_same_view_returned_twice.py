"""contiguous() of a contiguous view is the view: eager returns one object twice."""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing")}
DEVICE = "cpu"


def program(b):
    row = b.select(0, 0)
    return row.contiguous(), row


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).reshape(1, 2),), {}


def derive(x):
    return (x,), {}
