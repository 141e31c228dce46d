"""`_foreach_exp_([a, a])` is one exponential; eager takes two, one after the other.

Functionalization: what a list operator reads is taken from before all its writes.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    torch._foreach_exp_([a, a])
    return a


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
