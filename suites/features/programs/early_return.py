"""A loop that returns early, falls through to else, or returns None."""

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, stop):
    if stop is None:
        return None
    for index in range(3):
        x = x + index
        if index == stop:
            return x, index
    else:
        x = x * 10
    return x, -1


def inputs(call):
    return (torch.randn(3, device=DEVICE), (1, 5, None)[call]), {}
