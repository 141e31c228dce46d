"""grad of a torch.autograd.Function whose backward is not its derivative."""

import torch
from torch.func import grad

PROGRAM = {"tags": ("functional", "autograd")}
DEVICE = "cpu"


class Doubled(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 5 * x


def program(x):
    return grad(lambda a: Doubled.apply(a).sum())(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
