"""`a.data` is read twice: two tensors in eager, one object compiled.

Dynamo caches an argument's attribute after the first read.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "aliasing")}
DEVICE = "cpu"


def program(a):
    return a.data, a.data


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
