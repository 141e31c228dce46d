"""int64 arange times a Python constant passes 2**31."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "integer")}
DEVICE = "cpu"


def program(x):
    return torch.arange(x.shape[0], device=x.device, dtype=torch.int64) * 1500000000 + x


def inputs(call):
    return (torch.zeros(8, dtype=torch.int64, device=DEVICE),), {}
