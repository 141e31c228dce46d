"""rrelu of positive numbers in training draws random numbers; eager draws none.

Decomposition of rrelu_with_noise: draws a number for each element, negative or not.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "random")}
DEVICE = "cpu"


def program(a):
    return F.rrelu(a, training=True)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
