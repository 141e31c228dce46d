"""`a.data` is read twice: two tensors in eager, one and the same object compiled.

Dynamo keeps the attribute of an argument that it has read.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "aliasing")}
DEVICE = "cpu"


def program(a):
    return a.data, a.data


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
