"""`_foreach_copy_([a, b], [b, a])` exchanges them; eager copies one after the other.

Functionalization: a foreach operator's inputs are read before all of its writes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    torch._foreach_copy_([b, a], [a, b])
    return b


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
