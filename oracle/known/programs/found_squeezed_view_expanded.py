"""A view is squeezed in place, and expanded to its own shape and written: raises.

Fake tensors: autograd replays the view function, which does not include the squeeze.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "mutation", "autograd")}
DEVICE = "cpu"


def program(b):
    row = b[1:]
    row.squeeze_()
    row.expand_as(row).tanh_()
    return b * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    return (x * 1,), {}
