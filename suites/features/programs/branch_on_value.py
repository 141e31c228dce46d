"""A Python branch on the sign of a sum; calls take both sides and come back."""

import torch

PROGRAM = {"tags": ("control-flow", "data-dependent"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x):
    y = x * 2
    if y.sum() > 0:
        return torch.sqrt(y.abs()) + 1
    return y - 1


def inputs(call):
    sign = -1.0 if call == 1 else 1.0
    return (sign * torch.tensor([1.0, 2.0, 3.0], device=DEVICE),), {}
