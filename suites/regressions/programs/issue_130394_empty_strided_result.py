"""A result written into empty_strided keeps the strides it was made with."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "strides"), "rung": "inductor", "where": "layout of outputs"}
DEVICE = "cpu"


def program(x):
    result = torch.empty_strided(x.size(), x.stride(), device=x.device)
    result[:] = x + x
    return result


def inputs(call):
    full = torch.randn(16, 16, device=DEVICE)
    return (full.as_strided((16, 8), (16, 1)),), {}
