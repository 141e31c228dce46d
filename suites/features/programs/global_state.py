"""A module-level integer is rebound by every call."""

import torch

PROGRAM = {"tags": ("state",), "calls": [{}, {}, {}]}
DEVICE = "cpu"

step = 0


def program(x):
    global step
    step += 1
    return x + step, step


def inputs(call):
    return (torch.randn(4, device=DEVICE),), {}
