"""Sizes that vary are compared: two are equal, one is even, one is larger than a constant."""

import torch

PROGRAM = {"tags": ("export", "shapes", "guards"), "dynamic": True, "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, y):
    torch._check(x.shape[0] == y.shape[0])
    torch._check(x.shape[1] % 2 == 0)
    torch._check(x.shape[1] > 2)
    left, right = x.chunk(2, dim=1)
    return left * right + y[:, None], x.shape[1] // 2


def inputs(call):
    rows, columns = ((3, 4), (5, 8), (4, 6))[call]
    return (torch.randn(rows, columns, device=DEVICE), torch.randn(rows, device=DEVICE)), {}
