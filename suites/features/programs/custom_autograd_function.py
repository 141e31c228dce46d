"""A custom autograd.Function whose backward is not the derivative of its forward."""

# pyright: reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


class StraightThrough(torch.autograd.Function):
    """Rounds; the gradient is clipped and passed through."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < ctx.limit), None


def program(x, w):
    return StraightThrough.apply(x * w, 1.5) + x


def inputs(call):
    x = torch.tensor([0.3, -1.2, 2.6, 0.9], device=DEVICE, requires_grad=True)
    w = torch.tensor([1.0, 1.1, 0.7, -2.0], device=DEVICE, requires_grad=True)
    return (x, w), {}
