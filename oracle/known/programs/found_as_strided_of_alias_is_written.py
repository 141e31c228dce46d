"""as_strided of an argument is written that shares its memory with another one: refused.

Functionalization: a written view chain has as_strided at its beginning only; the synthetic base has its own there.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "strides")}
DEVICE = "cpu"


def program(a, b):
    b.as_strided((2, 1), (1, 1)).sub_(3)
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x.view(-1), x), {}
