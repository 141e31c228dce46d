"""One tensor is returned at three places: it stays one object."""

import torch

PROGRAM = {"tags": ("aliasing",), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    y = x * 2
    return y, {"again": y}, [y, x]


def inputs(call):
    return (torch.randn(3, device=DEVICE, requires_grad=True),), {}
