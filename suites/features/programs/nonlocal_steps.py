"""An inner function assigns variables of the outer one, in a loop and after a branch on data."""

import torch

PROGRAM = {"tags": ("closures", "data-dependent"), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x):
    total, steps = x * 0, []

    def step(index):
        nonlocal total
        total = total + x * index
        if total.sum() > 4:
            total = total / 2
        steps.append(index)

    for index in range(4):
        step(index)
    return total, steps


def inputs(call):
    return ((torch.ones(3, device=DEVICE) * (1, -1)[call]).requires_grad_(),), {}
