"""Dropout inside a checkpoint: recomputation must draw the same mask."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

PROGRAM = {"tags": ("autograd", "random"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def block(x):
    return F.dropout(torch.sin(x), p=0.5, training=True) * x


def program(x):
    return checkpoint(block, x, use_reentrant=False)


def inputs(call):
    return (torch.randn(8, 16, device=DEVICE, requires_grad=True),), {}
