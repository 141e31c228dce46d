"""A result that only a branch reads is no result of the program: its parameter has a gradient of zeros; eager gives none.

Runtime: a graph's backward uses tangents of zeros for results that are not differentiated.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    c, d = a * 2, torch.sigmoid(b)
    if (d > 0).any():
        d = d.sin()
    return c


def inputs(call):
    return tuple(torch.ones(3, device=DEVICE).requires_grad_() for _ in range(2)), {}
