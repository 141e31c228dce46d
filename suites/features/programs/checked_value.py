"""A check of a value read from a tensor: it holds in the first call, and raises in the second."""

import torch

PROGRAM = {"tags": ("data-dependent", "exceptions"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


def program(x):
    total = x.sum().item()
    torch._check(total > 4, lambda: "the sum is too small")
    return x * 2 if total > 4 else x - 1


def inputs(call):
    return (torch.tensor(([3, 4], [1, 2])[call], device=DEVICE),), {}
