"""A custom function returns a transposed view of its argument: its backward is skipped.

Output aliases: the result is regenerated as a view of the argument.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "aliasing"), "calls": [{"backward": True}]}
DEVICE = "cpu"


class View(torch.autograd.Function):
    """Its argument; the gradient times five."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * 5


def program(x):
    return View.apply(x).t()


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).requires_grad_(),), {}
