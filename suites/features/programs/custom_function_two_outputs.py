"""A custom autograd.Function with two outputs, one not differentiable, and an unused input."""

# pyright: reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


class SplitSign(torch.autograd.Function):
    """Magnitude and sign."""

    @staticmethod
    def forward(ctx, x, unused):
        sign = torch.sign(x)
        ctx.save_for_backward(sign)
        ctx.mark_non_differentiable(sign)
        return x.abs(), sign

    @staticmethod
    def backward(ctx, gradient, _):
        (sign,) = ctx.saved_tensors
        return gradient * sign, None


def program(x, unused):
    magnitude, sign = SplitSign.apply(x, unused)
    return magnitude * 2, sign


def inputs(call):
    x = torch.tensor([0.5, -1.5, 2.0], device=DEVICE, requires_grad=True)
    return (x, torch.ones(3, device=DEVICE, requires_grad=True)), {}
