"""A function that vmap maps appends shapes to a list of the program."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x):
    seen = []

    def function(row):
        seen.append(tuple(row.shape))
        return row.cumsum(0)

    return vmap(function)(x), seen


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
