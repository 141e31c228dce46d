"""A nested compile region appends an intermediate value to a list of its caller."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("closures", "mutation"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x, y):
    seen = []

    @nested_compile_region
    def block(t):
        seen.append(torch.sin(t))
        return torch.cos(t)

    return block(x) + block(y), seen[0] * seen[1]


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
