"""A custom function writes its argument and marks it dirty: its backward is left out.

Capture of autograd.Function: mark_dirty.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


class Doubled(torch.autograd.Function):
    """Doubles its argument in place."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 2


def program(a):
    return Doubled.apply(a) * 3


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}


def derive(a):
    return (a.clone(),), {}
