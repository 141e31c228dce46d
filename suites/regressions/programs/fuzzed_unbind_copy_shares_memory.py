"""The results of unbind_copy share their memory.

The copies are left out: results are views of one buffer.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    x, y = torch.unbind_copy(a + 1, 0)
    return x, y


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}
