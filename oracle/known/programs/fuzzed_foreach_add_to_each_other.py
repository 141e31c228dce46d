"""`_foreach_add_([a, b], [b, a])` adds to both what they were before; eager adds one after the other.

Functionalization: a foreach operator's inputs are read before all of its writes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    torch._foreach_add_([a, b], [b, a])
    return b


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
