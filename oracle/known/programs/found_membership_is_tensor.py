"""`tensor in [tensor]` is a tensor of comparisons where eager has True: a list finds the same object before it compares."""

import torch

PROGRAM = {"tags": ("differs", "capture")}
DEVICE = "cpu"


def program(x):
    return x + 1, x in [x]


def inputs(call):
    return (torch.ones(2, device=DEVICE),), {}
