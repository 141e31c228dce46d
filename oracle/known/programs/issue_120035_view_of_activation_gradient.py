"""The gradient of softplus arrives transposed, and its argument is a view: the backward takes a view of what it computes."""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "strides"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, weight):
    y = torch.nn.functional.softplus(x.view(2, 3, 4))
    return y.transpose(1, 2).contiguous() * weight


def inputs(call):
    x = torch.randn(6, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(2, 4, 3, device=DEVICE)), {}
