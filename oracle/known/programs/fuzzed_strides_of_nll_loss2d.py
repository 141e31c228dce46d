"""Cross_entropy of images and transposed classes has the classes' strides; eager's is contiguous.

Decompositions that do not keep eager's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a, classes):
    return F.cross_entropy(a, classes, reduction="none")


def inputs(call):
    classes = torch.zeros(3, 2, 2, dtype=torch.int64, device=DEVICE)
    return (torch.ones(2, 5, 2, 3, device=DEVICE), classes.permute(2, 1, 0)), {}
