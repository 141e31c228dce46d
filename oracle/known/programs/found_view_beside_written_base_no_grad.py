"""A view of an argument is used under enable_grad after its base was written under no_grad: raises.

Synthetic base: the view is regenerated under no_grad, and autograd forbids the use that eager's view allows.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a, b):
    a.mul_(2)
    with torch.enable_grad():
        out = b * 2
    return out.detach()


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x, x[0]), {}
