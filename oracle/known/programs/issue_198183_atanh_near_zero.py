"""atanh of small numbers has few digits, and none below 6e-8.

Vectorised CPU kernel: log((1 + x) / (1 - x)) / 2.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "precision", "vectorization")}
DEVICE = "cpu"


def program(a):
    return a.atanh()


def inputs(call):
    return (torch.tensor([1e-4, 1e-6, 1e-8, 1e-38], device=DEVICE),), {}
