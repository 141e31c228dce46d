"""Two slices of a result computed from a transposed tensor are returned: they do not share memory.

Layout of outputs: a view with other strides than expected is copied.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a.neg()
    return b[:1], b[1:]


def inputs(call):
    return (torch.arange(6.0, device=DEVICE).reshape(2, 3).t(),), {}
