"""any() of uint8 is bool; eager's is uint8.

Lowering of any.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "integer")}
DEVICE = "cpu"


def program(x):
    return torch.any(x)


def inputs(call):
    return (torch.arange(3, dtype=torch.uint8, device=DEVICE),), {}
