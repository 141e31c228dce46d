"""A generator that is closed early runs its finally block."""

import torch

PROGRAM = {"tags": ("control-flow", "exceptions"), "calls": [{}, {}]}
DEVICE = "cpu"

closed = []


def rows(x):
    try:
        for row in x:
            yield row * 2
    finally:
        closed.append(len(closed))


def program(x):
    stream = rows(x)
    first = next(stream)
    stream.close()
    return first, list(closed)


def inputs(call):
    return (torch.randn(3, 2, device=DEVICE),), {}
