"""A checked size that is too large in the second call."""

import torch

PROGRAM = {"tags": ("export", "exceptions", "data-dependent"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


def program(x):
    count = x.max().item()
    torch._check(count >= 0)
    torch._check(count < 5)
    return torch.arange(count, device=DEVICE) + x.shape[0]


def inputs(call):
    return (torch.tensor(([1, 4], [1, 7])[call], device=DEVICE),), {}
