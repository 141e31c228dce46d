"""Two clones of one value are returned: one object twice.

Post-grad: clones of a value that is not returned itself are removed, all of them.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a.neg()
    return b.clone(), b.clone()


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
