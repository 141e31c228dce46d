"""The gradient of overlapping windows is wrong: `a.clone().unfold(0, 2, 1)`.

Runtime: the incoming gradient is copied into the result's strides, where elements share a place.
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
