"""A value and a view of it of the same shape are returned: one object twice.

A pass removes views that change nothing.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a + 1
    return b.expand(16), b


def inputs(call):
    return (torch.ones(16, device=DEVICE),), {}
