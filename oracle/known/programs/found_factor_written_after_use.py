"""An argument is multiplied in place, and its factor written afterwards; the product is not differentiated."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a, b):
    a.mul_(b)
    b[0] += 3
    return a.detach() + b


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    x = x * 1
    return (x, torch.ones(2, 2, device=DEVICE)), {}
