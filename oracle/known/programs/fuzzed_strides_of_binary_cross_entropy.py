"""binary_cross_entropy of a transposed and a contiguous tensor is contiguous; eager's is transposed."""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, b):
    return F.binary_cross_entropy(a, b, reduction="none")


def inputs(call):
    a = torch.full((2, 2), 0.5, device=DEVICE)
    a[0, 1] = 0.25
    return (a.t(), a.clone()), {}
