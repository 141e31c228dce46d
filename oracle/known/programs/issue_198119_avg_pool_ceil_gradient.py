"""The gradient of avg_pool2d with ceil_mode: a window across the edge is divided by the kernel's size, not by its own.

Lowering of avg_pool2d_backward; the forward counts the elements in the window.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return F.avg_pool2d(a, 2, ceil_mode=True)


def inputs(call):
    return (torch.ones(1, 3, 3, device=DEVICE).requires_grad_(),), {}
