"""A custom function returns a view of its argument, which is transposed: its backward is left out.

Output aliases: the result is made again as a view of the argument.
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
