"""The mean huber_loss of no elements that require grad: raises ZeroDivisionError. Eager's is NaN, its gradient empty.

Decomposition of huber_loss_backward: 1 / a.numel().
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    return F.huber_loss(a, b)


def inputs(call):
    return (torch.ones(0, device=DEVICE).requires_grad_(), torch.ones(0, device=DEVICE)), {}
