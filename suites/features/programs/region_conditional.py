"""A branch of torch.cond within a nested compile region."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd", "control-flow"), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return torch.cond(x.sum() > 0, lambda y: torch.sin(y), lambda y: torch.cos(y), (x,))


def program(x, y):
    return block(x.abs()) + block(-y.abs())


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
