"""`torch.arange(2, 4, 0.5, dtype=torch.int32)` has four elements in eager: raises.

Capture: the fake range is one of integers, with a step of 0.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "integer")}
DEVICE = "cpu"


def program(x):
    return x + torch.arange(2, 4, 0.5, dtype=torch.int32, device=x.device)


def inputs(call):
    return (torch.ones(4, device=DEVICE),), {}
