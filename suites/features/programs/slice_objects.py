"""Slice objects, Ellipsis, None, negative steps of lists and a tuple of mixed indices."""

import torch

PROGRAM = {"tags": ("containers", "shapes")}
DEVICE = "cpu"


def program(x):
    middle = slice(1, -1)
    index = (middle, ..., None, 0)
    order = list(range(x.shape[0]))[::-2]
    return x[index], x[order], x[..., slice(None, None, 2)]


def inputs(call):
    return (torch.randn(5, 3, 4, device=DEVICE),), {}
