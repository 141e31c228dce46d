"""int64 arange times 10**9 passes 2**31."""

import torch

PROGRAM = {"tags": ("differs", "inductor", "integer")}
DEVICE = "cpu"


def program(x):
    ramp = torch.arange(11, device=x.device, dtype=torch.int64)
    return ramp * torch.tensor([10**9], dtype=torch.int64, device=x.device)


def inputs(call):
    return (torch.zeros(1, device=DEVICE),), {}
