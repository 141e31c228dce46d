"""`a.sin_()` of an argument: backward raises that a saved tensor was modified.

Partitioner: the argument is saved instead of its copy, and the epilogue writes it.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    a.sin_()
    return a.clone()


def inputs(call):
    return (torch.arange(2.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x * 1,), {}
