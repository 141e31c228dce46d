"""Channel_shuffle of a channels_last tensor is contiguous.

Decompositions that do not keep eager's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return F.channel_shuffle(a, 2)


def inputs(call):
    a = torch.arange(128.0, device=DEVICE).reshape(2, 8, 4, 2)
    return (a.contiguous(memory_format=torch.channels_last),), {}
