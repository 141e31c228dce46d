"""A helper under torch.compiler.disable runs as it is, between compiled parts."""

# pyright: reportArgumentType=false, reportOperatorIssue=false

import torch

PROGRAM = {"tags": ("control-flow", "state"), "calls": [{}, {}]}
DEVICE = "cpu"

seen = []


@torch.compiler.disable
def record(y):
    seen.append(tuple(y.shape))
    return y + len(seen)


def program(x):
    y = torch.sin(x)
    y = record(y)
    return y * 2, list(seen)


def inputs(call):
    return (torch.randn(2 + call, device=DEVICE),), {}
