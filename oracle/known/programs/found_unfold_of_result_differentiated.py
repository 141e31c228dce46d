"""The gradient of overlapping windows is wrong: `a.clone().unfold(0, 2, 1)`.

Runtime: the tangent is copied into a tensor with the result's strides, whose elements share memory.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "strides"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return a.clone().unfold(0, 2, 1)


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
