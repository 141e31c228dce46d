"""Nearest interpolation along one dimension of a permuted tensor is permuted; eager's is contiguous.

Decomposition of upsample_nearest1d: an index, which keeps its input's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    return F.interpolate(a, scale_factor=2)


def inputs(call):
    return (torch.ones(2, 3, 4, device=DEVICE).permute(1, 0, 2),), {}
