"""torch.cond within vmap: each row takes its own branch."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional", "control-flow")}
DEVICE = "cpu"


def program(x):
    scale = x.sum(0)
    return vmap(lambda row: torch.cond(row.sum() > 0, lambda r: r * scale, lambda r: r - scale, (row,)))(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
