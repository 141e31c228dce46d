"""Two overlapping arguments with dynamic shapes, one of them written: an internal assert.

Synthetic base: a storage of symbolic size is not supported.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation", "shapes"), "dynamic": True}
DEVICE = "cpu"


def program(a, b):
    a.add_(1)
    return b * 2


def inputs(call):
    memory = torch.arange(12.0, device=DEVICE)
    return (memory[:6], memory[4:10]), {}
