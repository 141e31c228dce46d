"""requires_grad_ is switched on and off inside the program, and per call on the input."""

import torch

PROGRAM = {"tags": ("autograd", "guards"), "calls": [{"backward": True}, {}, {"backward": True}]}
DEVICE = "cpu"


def program(x):
    frozen = (x * 2).detach()
    live = frozen.clone().requires_grad_(True)
    return x * frozen, live.requires_grad, x.requires_grad


def inputs(call):
    return (torch.randn(3, device=DEVICE, requires_grad=call != 1),), {}
