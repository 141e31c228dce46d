"""`_foreach_exp_([a, a])` is one exponential; eager takes two, one after the other.

Functionalization: a foreach operator's inputs are read before all of its writes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    torch._foreach_exp_([a, a])
    return a


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
