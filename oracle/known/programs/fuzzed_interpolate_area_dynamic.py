"""Area interpolation by a factor with dynamic shapes: fails to lower.

Lowering of adaptive_avg_pool2d: needs the truth value of a relation of symbols.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a):
    return F.interpolate(a, scale_factor=3.0, mode="area")


def inputs(call):
    return (torch.ones(2, 2, 3, 4, device=DEVICE),), {}
