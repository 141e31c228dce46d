"""vmap in chunks, the last of which is smaller."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional",)}
DEVICE = "cpu"


def program(x):
    return vmap(lambda a, b: (torch.dot(a, b), a.sin()), in_dims=(0, 0), chunk_size=2)(x, x + 1)


def inputs(call):
    return (torch.randn(5, 4, device=DEVICE),), {}
