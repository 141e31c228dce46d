"""vmap of vmap, as an outer product."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x):
    rows = vmap(torch.dot, in_dims=(0, None))
    return vmap(rows, in_dims=(None, 0))(x, x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
