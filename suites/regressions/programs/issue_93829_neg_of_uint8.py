"""The negative of a uint8 wraps before it is compared."""

import torch

PROGRAM = {"tags": ("agrees", "inductor", "integer"), "rung": "inductor", "where": "integer promotion"}
DEVICE = "cpu"


def program(x):
    negative = torch.neg(x)
    return negative, torch.lt(negative, torch.tensor(4, dtype=torch.uint8, device=x.device))


def inputs(call):
    return (torch.tensor(6, dtype=torch.uint8, device=DEVICE),), {}
