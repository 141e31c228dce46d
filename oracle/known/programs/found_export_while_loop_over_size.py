"""Strict export refuses a while_loop whose body adds a size that varies to a product."""

import torch
from torch._higher_order_ops.while_loop import while_loop

PROGRAM = {"tags": ("differs", "export", "shapes"), "sizes": {"x": {"0": ["batch", 2, 16]}}, "calls": [{}]}
DEVICE = "cpu"


def program(x, steps):
    rows = x.shape[0]
    return while_loop(
        lambda step, value: step > 0, lambda step, value: (step - 1, value * 0.5 + rows), (steps.clone(), x + 1)
    )


def inputs(call):
    return (torch.ones(4, 3, device=DEVICE), torch.tensor(3, device=DEVICE)), {}
