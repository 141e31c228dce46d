"""Tanh of an argument that lerp_ writes under no_grad: its gradient is that of the new values.

Partitioner: backward recomputes tanh from the argument; without Inductor autograd refuses.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    b = torch.tanh(a / 3)
    with torch.no_grad():
        a.lerp_(b, 0.5)
    return b * 2


def inputs(call):
    return (torch.tensor([3.0, 1.0], device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x * 2,), {}
