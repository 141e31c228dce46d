"""A detached argument that is written with a value that has a gradient, and returned, has no gradient.

Output aliases: the output is regenerated from the argument, and gets no tangent.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    view = a.detach()
    view.add_(a)
    return view


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
