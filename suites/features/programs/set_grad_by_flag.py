"""set_grad_enabled follows an argument, as a context and as a call."""

import torch

PROGRAM = {"tags": ("context", "guards"), "calls": [{"backward": True}, {}, {"backward": True}]}
DEVICE = "cpu"


def program(x, train):
    with torch.set_grad_enabled(train):
        y = x * 2
    return y, x + 1


def inputs(call):
    return (torch.randn(3, device=DEVICE, requires_grad=True), call != 1), {}
