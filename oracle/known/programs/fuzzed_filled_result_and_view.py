"""A result is filled with 0 through a view, and both are returned: each has memory of its own.

Joint graph: each is a constant, and constants are made anew.
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
