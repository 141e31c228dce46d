"""An argument without a gradient receives one with a gradient, while a view of it is an argument too: an assertion.

Capture: the fake tensor that tracing has changed is compared with the real argument again.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "mutation", "aliasing", "autograd")}
DEVICE = "cpu"


def program(a, b, c):
    c.copy_(b)
    return a * 2


def inputs(call):
    return (torch.ones(1, 4, device=DEVICE), torch.ones(1, 4, device=DEVICE).requires_grad_()), {}


def derive(x, y):
    return (x.mT, y, x), {}
