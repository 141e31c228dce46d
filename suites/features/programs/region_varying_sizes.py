"""A nested compile region is called with sizes that grow from call to call."""

import torch
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("shapes",), "calls": [{"backward": True}, {"backward": True}, {"backward": True}]}
DEVICE = "cpu"


@nested_compile_region
def block(x):
    return torch.sin(x) * x.shape[0]


def program(x):
    return block(block(x))


def inputs(call):
    return (torch.randn(3 + call, 4, device=DEVICE, requires_grad=True),), {}
