"""Bmm of int32 matrices of one row is int64; eager's is int32.

Lowering of bmm: a sum of products, and a sum of integers is int64.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "integer")}
DEVICE = "cpu"


def program(a, b):
    return torch.bmm(a, b)


def inputs(call):
    a = torch.ones(2, 1, 2, dtype=torch.int32, device=DEVICE)
    return (a, torch.ones(2, 2, 2, dtype=torch.int32, device=DEVICE)), {}
