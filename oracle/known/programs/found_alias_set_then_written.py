"""Two arguments share memory; the first one's `data` is set to a copy of it, and a write to the second reaches the copy.

Runtime: the epilogue writes updates to the arguments' final storage.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a, b):
    b.set_(a.detach())
    a.set_(b.detach().clone())
    b.add_(a)
    return b


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x, x[3:]), {}
