"""Two clones of one value are returned: one object twice.

Post-grad: if a value itself is not returned, all of its clones are removed.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = a.neg()
    return b.clone(), b.clone()


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
