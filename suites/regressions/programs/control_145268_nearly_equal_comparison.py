"""A gt of two nearly equal floats after an interpolation: a flip is no finding, both are within tolerance."""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("control", "discontinuity")}
DEVICE = "cpu"


def program(x):
    larger = F.interpolate(x, scale_factor=2.0, mode="bicubic")
    other = F.interpolate(x.double(), scale_factor=2.0, mode="bicubic").float()
    return torch.gt(larger, other), larger


def inputs(call):
    return (torch.rand(1, 2, 9, 9, device=DEVICE),), {}
