"""A numpy array shares memory with its tensor: writing to one changes the other."""

import torch

PROGRAM = {"tags": ("numpy", "aliasing", "mutation")}
DEVICE = "cpu"


def program(x):
    host = x.cpu().clone()
    array = host.numpy()
    array[0] = 7.0
    return host * 1, array.dtype.name


def inputs(call):
    return (torch.tensor([1.0, 2.0, 3.0], device=DEVICE),), {}
