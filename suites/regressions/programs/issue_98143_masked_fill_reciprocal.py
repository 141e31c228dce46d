"""masked_fill with a broadcast mask, then reciprocal_ in place."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "mutation"), "rung": "inductor", "where": "lowering"}
DEVICE = "cpu"


def program(x, mask):
    filled = x.masked_fill(mask, 2)
    filled.reciprocal_()
    return filled, x.reciprocal_()


def inputs(call):
    mask = torch.tensor([True, False, True, False], device=DEVICE).expand(2, 4).unsqueeze(-1)
    return (torch.rand(2, 4, 8, device=DEVICE) + 0.5, mask), {}
