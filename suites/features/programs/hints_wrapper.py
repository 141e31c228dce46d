"""A function with hints for the compiler."""

import torch
from torch._higher_order_ops.hints_wrap import hints_wrapper

PROGRAM = {"tags": ("functional",), "calls": [{}]}
DEVICE = "cpu"


def program(x, y):
    return hints_wrapper(lambda a, b: torch.sin(a) @ b.mT, (x, y), {}, hints={"level": 2})


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
