"""View_copy of a transposed tensor to one dimension: refused.

Decomposition: a view, then a clone; eager reshapes.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(a):
    return torch.view_copy(a, [4])


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE).t(),), {}
