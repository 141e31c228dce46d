"""Two overlapping arguments, the second one written: a returned slice of it has the wrong offset.

Synthetic base: the slice is regenerated from the base without the argument's offset.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation")}
DEVICE = "cpu"


def program(a, b):
    torch.neg(a)
    first, _, _ = b.chunk(3)
    b.add_(0.5)
    return first


def inputs(call):
    memory = torch.arange(4.0, device=DEVICE)
    return (memory[:3], memory[1:]), {}
