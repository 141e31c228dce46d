"""Two arguments of one memory and other shapes, one written: a view of the other one raises IndexError.

Synthetic base: the view is made again from the base, which has another shape than the argument.
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
