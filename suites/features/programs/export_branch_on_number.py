"""A Python branch on a number read from data, which only a draft export lets through."""

import torch

PROGRAM = {"tags": ("export", "data-dependent", "control-flow"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x):
    count = x.argmax().item()
    if count > 2:
        return x * 2
    return x - torch.ones(count + 1, device=DEVICE).sum()


def inputs(call):
    return (torch.tensor(([1.0, 2.0, 0.0, 5.0], [3.0, 1.0, 0.0, 2.0])[call], device=DEVICE),), {}
