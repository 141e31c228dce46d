"""A call under no_grad writes an argument under enable_grad: results computed from it have no gradient.

Analysis: the whole program is taken to run in the grad mode of the call.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a):
    with torch.enable_grad():
        a.relu_()
        return a.sigmoid()


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x,), {}
