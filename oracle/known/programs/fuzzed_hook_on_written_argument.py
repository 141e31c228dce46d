"""A hook is registered on an argument after it is written: the hook does not run.

Functionalization: the hook is on the old value, on which the result does not depend.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    a.mul_(3)
    a.register_hook(lambda gradient: gradient * 5)
    return a * 2


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x * 1,), {}
