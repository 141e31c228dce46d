"""With dynamic shapes, the gradient of the variance of a slice, beside an adaptive average of the same size: raises.

Lowering: the size becomes a number in forward, and 2 / (n - 1) in backward a division that is not carried out.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "autograd", "shapes"), "calls": [{"backward": True}], "dynamic": True}
DEVICE = "cpu"


def program(a, b):
    return torch.var(a[::3]), F.adaptive_avg_pool1d(b, 3)


def inputs(call):
    return (torch.arange(7.0, device=DEVICE).requires_grad_(), torch.ones(2, 4, 7, device=DEVICE)), {}
