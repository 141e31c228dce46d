"""An integer tensor compared with 3.5."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "integer"), "rung": "inductor", "where": "integer promotion"}
DEVICE = "cpu"


def program(x):
    return torch.ge(x, 3.5), x < 2.5


def inputs(call):
    return (torch.tensor([2, 3, 4], device=DEVICE),), {}
