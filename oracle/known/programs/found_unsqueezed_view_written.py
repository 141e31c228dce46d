"""A view of a result is unsqueezed in place and written: raises.

Joint graph: the gradient of the write has the shape from before the unsqueeze.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(b):
    view = (b * 3).view(-1)
    view.unsqueeze_(0)
    view.add_(b)
    return view * 2


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).reshape(1, 2).requires_grad_(),), {}


def derive(x):
    return (x,), {}
