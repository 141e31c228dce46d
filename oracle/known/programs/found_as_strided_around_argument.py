"""as_strided of a slice writes memory outside of the slice: raises.

Functionalization: an argument's functional value has the argument's elements only, not the rest of its storage.
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
