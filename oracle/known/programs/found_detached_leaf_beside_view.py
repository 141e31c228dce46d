"""A leaf is written through a detached second argument, while a view of it is in use: an internal assert of autograd.

Synthetic base: the leaf is regenerated as a view of the base, without a view function.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "autograd")}
DEVICE = "cpu"


def program(a, b):
    view = a.expand(-1)
    b.zero_()
    return view[1:].detach() * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x, x.detach()), {}
