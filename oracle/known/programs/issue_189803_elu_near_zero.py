"""Elu of small negative numbers has few digits, and none below 6e-8.

Vectorised CPU kernel of expm1: exp(x) - 1.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "precision", "vectorization")}
DEVICE = "cpu"


def program(a):
    return F.elu(a)


def inputs(call):
    return (torch.tensor([-1e-2, -1e-4, -1e-6, -1e-8], device=DEVICE),), {}
