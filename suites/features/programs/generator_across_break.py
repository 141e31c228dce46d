"""A generator goes on behind a graph break, with a value sent to it."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def running(x):
    total = x
    while True:
        got = yield total
        total = total + got


def program(x):
    generator = running(x)
    next(generator)
    first = generator.send(x * 2)
    print("between")
    return first, generator.send(first * 3)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
