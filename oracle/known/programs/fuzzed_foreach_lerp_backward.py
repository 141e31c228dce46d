"""Backward of `_foreach_lerp_`: it says that a value it saved was modified.

Capture: the operator is written in others, one of which saves what another one writes.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    torch._foreach_lerp_([a], [b], 0.25)
    return a


def inputs(call):
    return (torch.ones(3, device=DEVICE), torch.arange(3.0, device=DEVICE).requires_grad_()), {}
