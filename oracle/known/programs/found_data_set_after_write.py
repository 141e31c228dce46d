"""An argument is written, and then given other memory: refused.

Analysis: set_ of an argument that has other mutations.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation")}
DEVICE = "cpu"


def program(a):
    a.add_(1)
    a.data = a[:2].detach()
    return a * 2


def inputs(call):
    return (torch.arange(4.0, device=DEVICE),), {}


def derive(x):
    return (x,), {}
