"""Nested list, dict and set comprehensions with conditions and shadowed names."""

import torch

PROGRAM = {"tags": ("control-flow", "containers")}
DEVICE = "cpu"


def program(x):
    i = 100
    grid = [[x[i, j] * (i + j) for j in range(3) if j != i] for i in range(3)]
    diagonal = {i: x[i, i] for i in range(3)}
    parities = {(i + j) % 2 for i in range(3) for j in range(3)}
    return torch.stack([torch.stack(row) for row in grid]), diagonal, sorted(parities), i


def inputs(call):
    return (torch.randn(3, 3, device=DEVICE),), {}
