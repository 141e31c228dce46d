"""Max_pool1d of a transposed tensor is transposed; eager's is contiguous.

Max_pool1d in graphs is max_pool2d; eager has a kernel of its own.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    return F.max_pool1d(a, 2)


def inputs(call):
    return (torch.arange(16.0, device=DEVICE).reshape(1, 4, 4).transpose(1, 2),), {}
