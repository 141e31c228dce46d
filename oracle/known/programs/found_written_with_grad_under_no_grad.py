"""An argument is written under enable_grad, called under no_grad: what is computed from it loses its gradient.

Analysis: gradients are taken to be off where the compiled function is called.
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
