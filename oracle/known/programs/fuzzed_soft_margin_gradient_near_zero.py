"""The gradient of soft_margin_loss of large numbers has few digits, and none above 17.

Decomposition of soft_margin_loss_backward: sigmoid(z) - 1.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "precision"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, target):
    return F.soft_margin_loss(a, target)


def inputs(call):
    return (torch.tensor([9.0, 15.0], device=DEVICE).requires_grad_(), torch.ones(2, device=DEVICE)), {}
