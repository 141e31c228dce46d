"""Nothing reads one result of a nested compile region, so its argument has no gradient."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x, y):
    return torch.sin(x), torch.cos(y)


def program(x, y):
    first = block(x, x * 2)[0]
    return first + block(x, y)[0]


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
