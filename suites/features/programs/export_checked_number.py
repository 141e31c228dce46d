"""A number read from data is checked to be a length, and cuts a tensor."""

import torch

PROGRAM = {"tags": ("export", "data-dependent"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, length):
    count = length.item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[0])
    head = x.narrow(0, 0, count)
    return head * 2, torch.ones(count, device=DEVICE).sum() + x.sum()


def inputs(call):
    return (torch.randn(6, 2, device=DEVICE), torch.tensor((4, 2)[call], device=DEVICE)), {}
