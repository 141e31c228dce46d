"""The gradient of smooth_l1_loss is 0 where an input is NaN; eager's is NaN.

Decomposition of smooth_l1_loss_backward.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "nan"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    return F.smooth_l1_loss(x, y, reduction="sum")


def inputs(call):
    x = torch.tensor([float("nan"), 2.0], device=DEVICE)
    return (x, torch.tensor([1.0, 3.0], device=DEVICE).requires_grad_()), {}
