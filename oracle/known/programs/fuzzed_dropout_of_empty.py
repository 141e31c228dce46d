"""Dropout of no elements returns its argument; in-place changes of the result's shape do not reach the argument.

Functionalization of dropout: a new value.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a):
    b = F.dropout(a, 0.5)
    b.transpose_(0, 1)


def inputs(call):
    return (torch.ones(1, 0, device=DEVICE),), {}
