"""Tensors inside a list argument are changed in place; the list itself is not."""

import torch

PROGRAM = {"tags": ("containers", "mutation")}
DEVICE = "cpu"


def program(tensors, factor):
    for index, tensor in enumerate(tensors):
        tensor.mul_(factor + index)
    return sum(tensor.sum() for tensor in tensors)


def inputs(call):
    return ([torch.randn(2, 2, device=DEVICE) for _ in range(3)], 0.5), {}
