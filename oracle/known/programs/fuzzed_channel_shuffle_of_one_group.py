"""channel_shuffle with one group is a view of its argument; eager's is a copy.

Decomposition of channel_shuffle: a reshape, which returns a view if it can.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    return F.channel_shuffle(a, 1)


def inputs(call):
    return (torch.ones(1, 2, 3, device=DEVICE),), {}
