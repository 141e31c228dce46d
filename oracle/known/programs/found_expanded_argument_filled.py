"""An expanded argument is filled with one number: refused.

In-graph update: the new value is copied into all elements, also those that share memory.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "strides")}
DEVICE = "cpu"


def program(a):
    a.fill_(2)
    return a * 2


def inputs(call):
    return (torch.arange(2.0, device=DEVICE),), {}


def derive(x):
    return (x.expand(2, 2),), {}
