"""vmap of random functions: each slice draws its own numbers, or all draw the same."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional", "random")}
DEVICE = "cpu"


def program(x):
    different = vmap(lambda row: row + torch.randn(4, device=DEVICE), randomness="different")(x)
    same = vmap(lambda row: torch.nn.functional.dropout(row, 0.5), randomness="same")(x)
    return different, same


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
