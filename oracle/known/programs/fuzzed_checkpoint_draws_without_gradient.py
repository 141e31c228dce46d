"""A checkpointed function draws random numbers, and nothing has a gradient: refused.

Activation checkpointing: a pass for graphs that hold a backward of their own also sees graphs of inference.
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
