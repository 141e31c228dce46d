"""Two arguments of one memory; the first is given a copy of it, and a write to the second arrives in the copy.

Runtime: updates are copied to the arguments as they are in the end.
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
