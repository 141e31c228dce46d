"""A checkpointed function draws random numbers: backward draws other ones.

Capture: the checkpointed function is one operator, which does not restore the generator. AOTAutograd's partitioner does.
"""

import torch
from torch.utils.checkpoint import checkpoint

PROGRAM = {"tags": ("differs", "capture", "autograd", "random"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def scaled(x):
    return x * torch.randint(1000, x.shape, device=x.device)


def program(x):
    return checkpoint(scaled, x, use_reentrant=False)


def inputs(call):
    return (torch.ones(8, device=DEVICE).requires_grad_(),), {}
