"""Linear interpolation beside an infinity is NaN; eager has infinity.

Decomposition: a + (b - a) * w.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "nan")}
DEVICE = "cpu"


def program(x):
    return F.interpolate(x, scale_factor=2.0, mode="linear")


def inputs(call):
    return (torch.tensor([[[float("inf"), 1.0, 2.0]]], device=DEVICE),), {}
