"""Strict export drops an `assert` on a number that is read from a tensor: a call that violates it returns."""

import torch

PROGRAM = {"tags": ("differs", "export", "data-dependent"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


def program(x):
    assert x.sum().item() > 2
    return x + 1


def inputs(call):
    return (torch.full((4,), float(call == 0), device=DEVICE),), {}
