"""A function under InvokeQuant."""

import torch
from torch._higher_order_ops._invoke_quant import InvokeQuant

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


quantized = InvokeQuant()


def block(x, y):
    return (torch.sin(x * y) + y,)


def program(x, y):
    return quantized(block, x, y, scheme="nf4")[0] * 2


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
