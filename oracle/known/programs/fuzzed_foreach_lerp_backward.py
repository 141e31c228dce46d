"""Backward of `_foreach_lerp_` raises that a saved tensor was modified.

Capture: the operator is decomposed, and one operator saves a tensor that another one writes.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    torch._foreach_lerp_([a], [b], 0.25)
    return a


def inputs(call):
    return (torch.ones(3, device=DEVICE), torch.arange(3.0, device=DEVICE).requires_grad_()), {}
