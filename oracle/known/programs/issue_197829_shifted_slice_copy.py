"""x[1:] = x[:-1].clone(): the clone is dropped and the copy reads what it overwrites."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "mutation")}
DEVICE = "cpu"


def program(x):
    x[1:] = x[:-1].clone()
    return x


def inputs(call):
    return (torch.arange(256.0, device=DEVICE).reshape(16, 16),), {}
