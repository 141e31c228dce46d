"""The gradient of batch_norm in eval with a weight that is a slice with a step is wrong in eager, and right compiled.

Eager's kernel: the weight is read as if it were contiguous.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "strides"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, mean, variance, weight):
    return F.batch_norm(x, mean, variance, weight=weight, bias=weight)


def inputs(call):
    x = torch.arange(6.0, device=DEVICE).reshape(2, 3).requires_grad_()
    weight = torch.arange(8.0, device=DEVICE)[1:7:2]
    return (x, torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE), weight), {}
