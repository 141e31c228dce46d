"""nonzero, unique and boolean selection: the shape depends on the values, and can be empty."""

import torch

PROGRAM = {"tags": ("data-dependent", "shapes"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x):
    where = x.nonzero()
    picked = x[x > 0]
    values, counts = torch.unique(x, return_counts=True)
    return where, picked * 2, values, counts, where.shape[0]


def inputs(call):
    data = ([0, 3, -1, 3], [5, 0, 2, 0], [0, 0, 0, 0])[call]
    return (torch.tensor(data, device=DEVICE),), {}
