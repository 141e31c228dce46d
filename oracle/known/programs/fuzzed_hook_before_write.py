"""A hook is registered on an argument that is used and written: the hook does not run. Without the write it does.

Capture: the hook is registered after the graph has run, on the argument's new value.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    a.register_hook(lambda gradient: gradient * 5)
    b = -a
    a.add_(1)
    return b


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x * 1,), {}
