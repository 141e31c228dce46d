"""An argument is written, and then its `data` is set to another argument's: the write does not reach its first storage.

Runtime epilogue: an argument that was set_ is only set_.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a, b):
    b.mul_(2)
    b.data = a.detach()


def inputs(call):
    return (torch.arange(2.0, device=DEVICE), torch.arange(4.0, device=DEVICE)), {}


def derive(x, y):
    return (x, y[1:]), {}
