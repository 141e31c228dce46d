"""Erf of small numbers has three digits, and none below 1e-7.

Vectorised CPU kernel: an approximation whose error is absolute.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "precision", "vectorization")}
DEVICE = "cpu"


def program(x):
    return torch.erf(x)


def inputs(call):
    return (torch.linspace(1e-3, 2e-3, 64, device=DEVICE),), {}
