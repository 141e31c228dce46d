"""`a.data` is set to a view of itself, through which it is then written: refused.

Functionalization: memory that was given to set_ is frozen.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    view = a.view_as(a)
    a.data = view.detach()
    view.mul_(2)
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
