"""A part of a transposed result is written and returned: it has strides of its own.

Layout of outputs: what is no view of an input is made dense.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    b = a * 2
    c = b[:2]
    c.fill_(2.0)
    return c


def inputs(call):
    return (torch.arange(12.0, device=DEVICE).reshape(3, 4).t(),), {}
