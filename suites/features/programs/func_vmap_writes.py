"""vmap of a function that writes to its row in place."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional", "mutation")}
DEVICE = "cpu"


def program(x):
    y = x.clone()
    vmap(lambda row: row.mul_(2))(y)
    return y, vmap(lambda row: torch.zeros_like(row).add_(row).mul_(2))(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
