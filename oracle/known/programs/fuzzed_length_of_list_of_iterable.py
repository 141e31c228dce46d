"""`len(list(items))` of an object that has `__iter__` and no `__len__`: an internal error.

Guards: a guard calls `len` on the object.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "guards")}
DEVICE = "cpu"


class Items:
    """Three numbers."""

    def __iter__(self):
        return iter((1, 2, 3))


items = Items()


def program(x):
    return x * len(list(items))


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
