"""Errors of vmap for functions that return no tensors are caught."""

import torch
from torch.func import vmap

PROGRAM = {"tags": ("functional", "exceptions")}
DEVICE = "cpu"


def program(x):
    found = []
    for function in (lambda row: 3, lambda row: (row, "text")):
        try:
            found.append(vmap(function)(x))
        except ValueError:
            found.append("ValueError")
    return found, x + 1


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
