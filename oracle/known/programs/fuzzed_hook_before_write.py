"""An argument is given a hook, used, and written: the hook is not run. Without the write it is.

Capture: the hook is registered when the graph has run, on the tensor that the argument is by then.
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
