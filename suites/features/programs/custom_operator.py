"""An operator of the program, with a fake kernel and a gradient of its own."""

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


@torch.library.custom_op("oracle_features::scaled_cube", mutates_args=())
def scaled_cube(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.detach() ** 3 * by


@scaled_cube.register_fake
def _(x, by):
    return torch.empty_like(x)


def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]


def backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * 3 * x**2 * ctx.by, None


scaled_cube.register_autograd(backward, setup_context=setup)


def program(x, by):
    return scaled_cube(x.sin(), by) + x


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE, requires_grad=True), (0.5, 2.0)[call]), {}
