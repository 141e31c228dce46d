"""max_pool1d of a tensor with the negative bit ignores the bit in eager, and is right compiled.

Eager's kernel: it reads the memory of a contiguous tensor whose negative bit is set.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(x):
    return F.max_pool1d(x, 2)


def inputs(call):
    return (torch._neg_view(torch.arange(6.0, device=DEVICE).reshape(1, 6)),), {}
