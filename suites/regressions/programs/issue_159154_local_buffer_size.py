"""einsum, exp, sum and einsum fused into one kernel: the intermediate has three dimensions left."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "memory"), "rung": "inductor", "where": "CPU local buffer"}
DEVICE = "cpu"


def program(x, rates):
    weights = torch.exp(-torch.einsum("i...,i->i...", x, rates))
    total = torch.einsum("i...->i", weights)
    return torch.einsum("i,i...->i...", 1 / total, weights)


def inputs(call):
    return (torch.rand(5, 1, 32, 32, device=DEVICE), torch.rand(5, device=DEVICE)), {}
