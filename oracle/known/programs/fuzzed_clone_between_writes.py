"""A slice of an argument is written, the argument cloned and written again: the clone has the argument's final values.

Post-grad: no-op removal drops the clone, then the writes are made in place.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    a[0].neg_()
    b = a.clone()
    a.mul_(10)
    return b


def inputs(call):
    return (torch.arange(1.0, 5.0, device=DEVICE).reshape(2, 2),), {}
