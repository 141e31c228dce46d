"""A context manager of the program's own class counts entries, and swallows one exception type."""

import torch

PROGRAM = {"tags": ("context", "exceptions", "state"), "calls": [{}, {}]}
DEVICE = "cpu"


class Guarded:
    """Swallows ValueError."""

    def __init__(self):
        self.entered = 0
        self.swallowed = 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, ValueError):
            self.swallowed += 1
            return True
        return False


guarded = Guarded()


def program(x):
    y = x
    with guarded as same:
        y = y + same.entered
        if x.shape[0] == 3:
            raise ValueError("three rows")
        y = y * 100
    return y, guarded.entered, guarded.swallowed


def inputs(call):
    return (torch.randn(3 - call, 2, device=DEVICE),), {}
