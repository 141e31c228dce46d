"""vmap over one and over two arguments, with in_dims and out_dims."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    dots = vmap(torch.dot)(x, y)
    outer = vmap(lambda row, other: row[:, None] * other, in_dims=(0, None), out_dims=1)(x, y[0])
    return dots, outer


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
