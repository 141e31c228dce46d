"""Rrelu in training of every second element: an assertion about strides.

Inductor: the fake uniform is dense, the real one has the argument's strides.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "strides", "random")}
DEVICE = "cpu"


def program(a):
    return F.rrelu(a, training=True)


def inputs(call):
    return (torch.ones(4, device=DEVICE)[::2],), {}
