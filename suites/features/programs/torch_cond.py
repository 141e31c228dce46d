"""torch.cond takes both branches over two calls."""

import torch

PROGRAM = {"tags": ("functional", "control-flow", "data-dependent"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x):
    return torch.cond(x.sum() > 0, lambda y: torch.sin(y), lambda y: y * 2, (x,))


def inputs(call):
    return ((1.0 - 2.0 * call) * torch.tensor([1.0, 2.0], device=DEVICE),), {}
