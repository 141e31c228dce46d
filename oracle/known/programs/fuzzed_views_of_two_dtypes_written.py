"""Two arguments are views of one memory by two dtypes, one of them written: refused.

Synthetic base: not supported for views of two dtypes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation")}
DEVICE = "cpu"


def program(a, b):
    b.add_(1)
    return a * 2


def inputs(call):
    memory = torch.ones(2, device=DEVICE)
    return (memory, memory.view(torch.int32)), {}
