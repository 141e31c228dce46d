"""Sets of integers and strings: union, difference, membership, sorted order."""

import torch

PROGRAM = {"tags": ("containers",)}
DEVICE = "cpu"


def program(x, wanted):
    have = {0, 1, 2, 3}
    used = have & set(wanted)
    rest = have - used
    rest.add(7)
    columns = sorted(used | {3})
    total = x[:, columns].sum(dim=0)
    return total, sorted(rest), 7 in rest, frozenset(wanted) <= have


def inputs(call):
    return (torch.randn(2, 4, device=DEVICE), [1, 3]), {}
