"""Keyword-only arguments given, left out, and given in another order."""

import torch

PROGRAM = {"tags": ("control-flow", "guards"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(x, /, y=None, *, alpha=1.0, beta=2.0):
    y = x if y is None else y
    return alpha * x - beta * y


def inputs(call):
    x = torch.randn(3, device=DEVICE)
    kwargs = ({}, {"beta": 0.5, "alpha": 3.0}, {"y": x + 1, "alpha": -1.0})[call]
    return (x,), kwargs
