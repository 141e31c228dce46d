"""An iterator that lives outside of the program is advanced by it: a second call goes on where the first stopped."""

import torch

PROGRAM = {"tags": ("containers", "state"), "calls": [{}, {}]}
DEVICE = "cpu"

NUMBERS = iter([2, 3, 5, 7, 11])


def program(x, items):
    others = iter(items)
    first = next(others)
    return x * first + next(NUMBERS), next(others, None), list(others)


def inputs(call):
    return (torch.ones(2, device=DEVICE), [4, 6, 8][call:]), {}
