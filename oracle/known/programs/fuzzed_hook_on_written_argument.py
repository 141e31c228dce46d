"""An argument is written, then given a hook: the hook is not run.

Functionalization: the hook stays with the old value, on which the result no longer depends.
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
