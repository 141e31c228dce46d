"""An exception of the program's own class leaves it, after an input was changed in place."""

import torch

PROGRAM = {"tags": ("exceptions", "mutation"), "calls": [{}, {}], "expects_raise": True}
DEVICE = "cpu"


class TooLarge(ValueError):
    """Carries the limit that was passed."""

    def __init__(self, limit):
        super().__init__(f"over {limit}")
        self.limit = limit


def check(size, limit):
    if size > limit:
        raise TooLarge(limit)


def program(x, limit):
    x.add_(1)
    check(x.shape[0], limit)
    return x * 2


def inputs(call):
    return (torch.randn(4, device=DEVICE), (8, 2)[call]), {}
