"""as_strided makes overlapping windows; expand makes stride zero."""

import torch

PROGRAM = {"tags": ("aliasing", "shapes"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    y = x * 1
    windows = y.as_strided((4, 3), (1, 1))
    return windows.sum(dim=1), y[:1].expand(5), x.unfold(0, 2, 2)


def inputs(call):
    return (torch.randn(6, device=DEVICE, requires_grad=True),), {}
