"""A generator with send, a generator expression and yield from."""

import torch

PROGRAM = {"tags": ("control-flow",)}
DEVICE = "cpu"


def running_sum(x):
    total = x
    while True:
        step = yield total
        if step is None:
            return
        total = total + step


def both(x):
    yield x
    yield from (x * factor for factor in (2, 3))


def program(x):
    stream = running_sum(x)
    next(stream)
    first = stream.send(1.0)
    second = stream.send(x)
    return first, second, list(both(x)), sum(part.sum() for part in both(x))


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
