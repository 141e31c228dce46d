"""as_strided of a part of a tensor writes memory beside the part: raises.

Functionalization: an argument's value holds the argument's elements, and no memory around them.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "strides")}
DEVICE = "cpu"


def program(a):
    a.as_strided((2,), (1,), 0).zero_()
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x[0],), {}
