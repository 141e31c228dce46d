"""A cell rebound with nonlocal counts the calls."""

import torch

PROGRAM = {"tags": ("closures", "state"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def make_program():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * count, count

    return step


program = make_program()


def inputs(call):
    return (torch.randn(4, device=DEVICE),), {}
