"""The gradient of antialiased bicubic interpolation with dynamic shapes: an internal assert.

Joint graph: the backward operator gets symbolic sizes instead of integers.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "autograd", "shapes"), "calls": [{"backward": True}], "dynamic": True}
DEVICE = "cpu"


def program(a):
    return F.interpolate(a, size=(1, 1), mode="bicubic", antialias=True)


def inputs(call):
    return (torch.ones(1, 1, 2, 1, device=DEVICE).requires_grad_(),), {}
