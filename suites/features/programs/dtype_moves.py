"""Integer, half, bfloat16, double and bool in one program, with type promotion."""

import torch

PROGRAM = {"tags": ("dtype",)}
DEVICE = "cpu"


def program(x):
    whole = (x * 10).to(torch.int64)
    half = x.half() + 1
    wide = x.double() / 3
    mixed = whole * 0.5
    return whole, half, wide, mixed, x.bfloat16(), x > 0, (x > 0) + whole, x.to(torch.uint8)


def inputs(call):
    return (torch.tensor([0.5, 1.25, 2.75], device=DEVICE),), {}
