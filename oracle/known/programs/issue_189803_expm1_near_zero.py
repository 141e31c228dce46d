"""expm1 of small numbers has few digits, and none below 6e-8.

Vectorised CPU kernel: exp(x) - 1.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "precision", "vectorization")}
DEVICE = "cpu"


def program(a):
    return a.expm1()


def inputs(call):
    return (torch.tensor([1e-2, 1e-4, 1e-6, 1e-8], device=DEVICE),), {}
