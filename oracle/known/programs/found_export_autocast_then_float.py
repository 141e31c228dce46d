"""Strict export of `float()` after a region under autocast gives a module that raises."""

import torch

PROGRAM = {"tags": ("differs", "export", "dtype"), "calls": [{}]}
DEVICE = "cpu"


def program(x):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        product = x @ x
    return product.float()


def inputs(call):
    return (torch.ones(2, 2, device=DEVICE),), {}
