"""A checkpoint with dropout within a nested compile region."""

import torch
from torch.compiler import nested_compile_region
from torch.utils.checkpoint import checkpoint

PROGRAM = {"tags": ("autograd", "random"), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return checkpoint(lambda t: torch.cos(torch.nn.functional.dropout(t, 0.5)), x, use_reentrant=False)


def program(x, y):
    return block(x) + block(y)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
