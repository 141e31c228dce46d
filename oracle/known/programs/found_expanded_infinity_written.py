"""A write through expand() of a tensor that holds infinity makes NaN of it.

Functionalization: the inverse of expand adds the sum of differences, which booleans do not have.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    a.expand(-1).mul_(2)
    return a.clone()


def inputs(call):
    return (torch.tensor([1.0, float("inf")], device=DEVICE),), {}


def derive(x):
    return (x,), {}
