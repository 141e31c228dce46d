"""A product of integers with another dtype."""

import torch
from torch._higher_order_ops.out_dtype import out_dtype

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


def program(x, y):
    a, b = (x * 9).to(torch.int8), (y * 9).to(torch.int8)
    return out_dtype(torch.ops.aten.mm.default, torch.int32, a, b.mT)


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
