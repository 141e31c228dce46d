"""Two arguments share memory and have different shapes, one is written: a view of the other one raises IndexError.

Synthetic base: the view is regenerated from the base, whose shape differs from the argument's.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation")}
DEVICE = "cpu"


def program(a, b):
    b.mul_(2)
    return a[:, 1:]


def inputs(call):
    memory = torch.arange(4.0, device=DEVICE)
    return (memory.view(2, 2), memory), {}
