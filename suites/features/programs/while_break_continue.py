"""while with break, continue and else, over Python integers."""

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, limit):
    steps = 0
    while steps < 6:
        steps += 1
        if steps % 2 == 0:
            continue
        if steps > limit:
            break
        x = torch.sin(x) + steps
    else:
        x = -x
    return x, steps


def inputs(call):
    return (torch.randn(3, device=DEVICE), (3, 9)[call]), {}
