"""A conjunction and a disjunction of conditions on numbers read from data are checked."""

import torch
from torch.fx.experimental.symbolic_shapes import sym_and, sym_or

PROGRAM = {"tags": ("export", "data-dependent"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x):
    first, second = x.tolist()
    torch._check(sym_and(first >= 2, first < 8))
    torch._check(sym_or(second == first, second < 3))
    return torch.zeros(first, device=DEVICE) + second, x + first


def inputs(call):
    return (torch.tensor(([4, 4], [3, 1])[call], device=DEVICE),), {}
