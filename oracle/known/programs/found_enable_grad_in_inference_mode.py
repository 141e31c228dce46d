"""enable_grad in inference mode: the result requires a gradient, eager's does not.

Analysis: the outputs' requires_grad is found outside inference mode.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"grad_mode": "inference"}]}
DEVICE = "cpu"


def program(a):
    with torch.enable_grad():
        return a.sin()


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
