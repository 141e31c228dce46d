"""A 0-d result is given other memory and shape by set_, and viewed: raises.

Functionalization: the view is made with the shape before set_.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    out = a.sum()
    out.set_(a.clone())
    return out.view_as(out)


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
