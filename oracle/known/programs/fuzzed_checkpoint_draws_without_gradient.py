"""A checkpointed function draws random numbers, and nothing requires grad: refused.

Activation checkpointing: a pass for graphs with their own backward is applied to inference graphs too.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

PROGRAM = {"tags": ("differs", "aot", "random")}
DEVICE = "cpu"


def thin_out(x):
    return F.dropout(x, 0.5)


def program(a):
    return checkpoint(thin_out, a, use_reentrant=False)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
