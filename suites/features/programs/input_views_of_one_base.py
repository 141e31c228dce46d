"""Two overlapping views of one base are inputs; one is changed, the other is read."""

import torch

PROGRAM = {"tags": ("aliasing", "mutation", "guards"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(left, right):
    left.mul_(10)
    return right + left.sum()


def inputs(call):
    base = torch.arange(8.0, device=DEVICE)
    if call == 0:
        return (base[:5], base[3:]), {}
    return (base[:3], base[5:]), {}
