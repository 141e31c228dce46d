"""vmap over other dimensions of two inputs, with a third one shared."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x, y):
    return vmap(lambda a, b, c: a * b.sum() + c.mean(), in_dims=(1, 0, None), out_dims=1)(x, y, x)


def inputs(call):
    return (
        torch.randn(3, 4, device=DEVICE),
        torch.randn(4, 2, device=DEVICE),
    ), {}
