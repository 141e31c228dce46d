"""Two parts of what was computed from a transposed tensor are returned: each has memory of its own.

Layout of outputs: a view whose strides are not those that were expected is copied.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a.neg()
    return b[:1], b[1:]


def inputs(call):
    return (torch.arange(6.0, device=DEVICE).reshape(2, 3).t(),), {}
