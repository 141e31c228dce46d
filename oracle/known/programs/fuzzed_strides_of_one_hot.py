"""One_hot of a transposed tensor has strides that follow it; eager's is contiguous.

One_hot in graphs is a comparison with a range; eager scatters.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "strides")}
DEVICE = "cpu"


def program(a):
    return F.one_hot(a, 5)


def inputs(call):
    return (torch.arange(4, device=DEVICE).reshape(2, 2).t(),), {}
