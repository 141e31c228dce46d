"""A slice of a transposed result is written and returned: its strides differ from eager's.

Layout of outputs: an output that is no view of an input becomes dense.
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
