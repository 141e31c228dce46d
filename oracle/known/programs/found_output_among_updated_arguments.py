"""An argument that is written and returned takes the place of another argument's update.

Joint graph: outputs that are arguments are inserted by position, and the list starts with updates.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a, b):
    out = a.add_(1)
    b.mul_(2)
    return out


def inputs(call):
    return (torch.arange(2.0, device=DEVICE), torch.ones(2, device=DEVICE).requires_grad_()), {}


def derive(x, y):
    return (x, y * 3), {}
