"""vmap of topk and sort, which return named results."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x):
    found = vmap(lambda row: torch.topk(row, 2))(x)
    return found.values, found.indices, vmap(lambda row: row.sort().values)(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
