"""The Hessian of each row, by vmap of hessian."""

import torch
from torch.func import hessian, vmap

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


def program(x):
    return vmap(hessian(lambda row: (row**3).sum() + row.prod()))(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
