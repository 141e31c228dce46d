"""`a.data = ...` in inference mode makes an inference tensor of the argument; compiled, it stays a normal one.

Capture: set_ is recorded for the assignment.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "mutation"), "calls": [{"grad_mode": "inference"}]}
DEVICE = "cpu"


def program(a):
    a.data = a.clone()


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
