"""`detach_` of the product of a vector and a matrix: refused, as if it were a view.

Capture: the fake product is a view.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd")}
DEVICE = "cpu"


def program(a, b):
    c = a @ b
    c.detach_()
    return c * 2


def inputs(call):
    return (torch.ones(2, device=DEVICE), torch.ones(2, 2, device=DEVICE)), {}
