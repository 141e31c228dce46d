"""Softshrink of NaN is 0; eager's is NaN.

Joint graph: the decomposition multiplies by 0 to keep NaN, and the product is folded.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "nan")}
DEVICE = "cpu"


def program(a):
    return F.softshrink(a)


def inputs(call):
    return (torch.tensor([float("nan"), 0.25, 2.0], device=DEVICE),), {}
