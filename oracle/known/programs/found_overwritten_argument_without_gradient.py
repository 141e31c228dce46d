"""An argument is overwritten and not returned: eager gives it no gradient, not a zero one."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    b.zero_()
    return a * 2


def inputs(call):
    return tuple(torch.arange(4.0, device=DEVICE).requires_grad_() for _ in range(2)), {}


def derive(one, other):
    return (one * 1, other * 1), {}
