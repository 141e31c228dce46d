"""A tensor kept in a cell is updated in place by every call."""

import torch

PROGRAM = {"tags": ("closures", "state", "mutation"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def make_program():
    total = torch.zeros(4, device=DEVICE)

    def accumulate(x):
        total.add_(x)
        return total.clone(), total.sum()

    return accumulate


program = make_program()


def inputs(call):
    return (torch.randn(4, device=DEVICE) + call,), {}
