"""A result is filled with 0 through a view, and both are returned: they do not share memory.

Joint graph: each is a constant with a new tensor.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a * a
    view = b.unsqueeze(0)
    view.fill_(0)
    return view, b * b, b


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
