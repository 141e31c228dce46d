"""A hook on `a.mT` is not run; on `a.t()` it is.

Dynamo makes the view again where it is used, and the hook is on another object.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    b = a.mT
    b.register_hook(lambda gradient: gradient * 5)
    return -b


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).requires_grad_(),), {}
