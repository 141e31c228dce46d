"""Sums of int32 matrix products at the ends of the range wrap as eager's do."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "integer"), "rung": "inductor", "where": "CPU integer matmul"}
DEVICE = "cpu"


def program(x, y, z, p, q, r):
    left = x @ y + x @ z
    right = p @ q + p @ r
    return (left + right).sum(dim=1)


def inputs(call):
    info = torch.iinfo(torch.int32)
    edges = torch.tensor([info.max, info.min, -1, 1], dtype=torch.int32, device=DEVICE).reshape(2, 2)
    return tuple(edges.roll(shift, 0).roll(shift // 2, 1) for shift in range(6)), {}
