"""Soft_margin_loss of float16 and float32 is float32; eager's has the input's dtype.

Decomposition of soft_margin_loss: dtypes are promoted.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor")}
DEVICE = "cpu"


def program(a, target):
    return F.soft_margin_loss(a, target)


def inputs(call):
    return (torch.ones(2, dtype=torch.float16, device=DEVICE), torch.ones(2, device=DEVICE)), {}
