"""addcdiv of complex numbers near the largest one: a number; eager's overflows.

Capture: the operator is replaced by a + value * (b / c).
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "precision")}
DEVICE = "cpu"


def program(a):
    return torch.addcdiv(a, a, a, value=2)


def inputs(call):
    return (torch.tensor([1.7e308j], dtype=torch.complex128, device=DEVICE),), {}
