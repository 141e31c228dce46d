"""Arguments that are None, that nothing reads, and that are returned as they are."""

import torch

PROGRAM = {"tags": ("export", "aliasing"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, unused, weight=None, *, flag=None):
    result = x if weight is None else x @ weight
    return result * 2, x, [flag, weight]


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE), torch.zeros(1, device=DEVICE), torch.randn(4, 2, device=DEVICE)), {}
