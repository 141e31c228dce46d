"""A write under no_grad through a second argument cuts the first one's gradient.

Synthetic base: a write hidden from autograd is treated like one that autograd sees.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    with torch.no_grad():
        b.mul_(2)
    return a[:2]


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x, x[1:]), {}
