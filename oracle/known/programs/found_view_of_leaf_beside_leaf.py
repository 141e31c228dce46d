"""A leaf and a view of it are arguments, and the leaf is written under no_grad: refused.

Synthetic base: of arguments that share memory, all must be leaves, or none.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a, b):
    b.mul_(2)
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    return (x.view(-1), x), {}
