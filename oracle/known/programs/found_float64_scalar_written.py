"""An in-place write to a float64 tensor without dims is lost.

Capture, restarted for Python scalars: a write whose result is unused is taken for a use of a scalar argument.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(total, x):
    total.add_(x.sum())
    return total


def inputs(call):
    return (torch.zeros((), dtype=torch.float64, device=DEVICE), torch.arange(4.0, device=DEVICE)), {}


def derive(total, x):
    return (total, x), {}
