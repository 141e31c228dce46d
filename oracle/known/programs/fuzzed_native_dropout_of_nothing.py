"""native_dropout with p = 0 is its argument; eager's is a copy.

Decomposition of native_dropout.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    result, _ = torch.native_dropout(a, 0.0, True)
    return result


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
