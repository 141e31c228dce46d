"""A number argument changes value and then type: int, float, bool, None."""

import torch

PROGRAM = {"tags": ("guards",), "calls": [{}, {}, {}, {}, {}, {}]}
DEVICE = "cpu"


def program(x, value):
    if value is None:
        return x
    return x * value + (1 if isinstance(value, bool) else 0)


def inputs(call):
    return (torch.tensor([1, 2, 3], device=DEVICE), (2, 3, 2.5, True, None, 0)[call]), {}
