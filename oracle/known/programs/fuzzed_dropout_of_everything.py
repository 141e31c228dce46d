"""Dropout with p = 1 draws random numbers; eager draws none.

Decomposition of dropout: native_dropout.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "random")}
DEVICE = "cpu"


def program(x):
    return F.dropout(x, 1.0)


def inputs(call):
    return (torch.ones(16, device=DEVICE),), {}
