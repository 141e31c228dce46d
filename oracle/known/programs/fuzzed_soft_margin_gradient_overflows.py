"""The gradient of soft_margin_loss is NaN in eager where exp overflows, and a number compiled.

Eager's kernel: exp(z) / (1 + exp(z)).
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "nan"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    return F.soft_margin_loss(x, y)


def inputs(call):
    x = torch.tensor([3e38, -3e38, 1.0], device=DEVICE)
    return (x.requires_grad_(), torch.tensor([-1.0, 1.0, 1.0], device=DEVICE)), {}
