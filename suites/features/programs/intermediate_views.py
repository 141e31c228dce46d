"""Two outputs are views of one intermediate that is not returned."""

import torch

PROGRAM = {"tags": ("aliasing",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    base = torch.sin(x)
    return base[0], base[:, 1:], base.transpose(0, 1)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
