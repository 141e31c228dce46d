"""The gradient of hardsigmoid in double has eight digits in eager, sixteen compiled.

Eager's kernel: 1/6 is a float32 constant.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "precision"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    return F.hardsigmoid(x)


def inputs(call):
    return (torch.zeros(3, dtype=torch.float64, device=DEVICE).requires_grad_(),), {}
