"""contextlib.contextmanager, nullcontext and ExitStack."""

import contextlib

import torch

PROGRAM = {"tags": ("context", "state")}
DEVICE = "cpu"

depth = []


@contextlib.contextmanager
def level(name):
    depth.append(name)
    try:
        yield len(depth)
    finally:
        depth.pop()


def program(x):
    with contextlib.ExitStack() as stack:
        for name in ("a", "b"):
            x = x + stack.enter_context(level(name))
        inside = list(depth)
    with contextlib.nullcontext(3) as three:
        x = x * three
    return x, inside, list(depth)


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
