"""A view made by expand shows the in-place division of its base that follows."""

import torch

PROGRAM = {"tags": ("agrees", "aot", "mutation", "aliasing"), "rung": "aot_eager", "where": "functionalization"}
DEVICE = "cpu"


def program(x):
    expanded = x.expand(1, 1, 3)
    x.div_(1.5)
    return expanded


def inputs(call):
    return (torch.rand(3, device=DEVICE),), {}
