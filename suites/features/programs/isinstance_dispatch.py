"""isinstance, type and functools.singledispatch choose by the type of each leaf."""

from functools import singledispatch

import torch

PROGRAM = {"tags": ("classes", "control-flow"), "calls": [{}, {}]}
DEVICE = "cpu"


@singledispatch
def weigh(value):
    return 0.0


@weigh.register
def _(value: int):
    return float(value)


@weigh.register
def _(value: str):
    return float(len(value))


def program(x, things):
    total = x
    for thing in things:
        if isinstance(thing, torch.Tensor):
            total = total + thing
        elif isinstance(thing, (list, tuple)):
            total = total * len(thing)
        elif type(thing) is bool:
            total = -total
        else:
            total = total + weigh(thing)
    return total


def inputs(call):
    x = torch.randn(3, device=DEVICE)
    things = [x * 2, (1, 2), True, 4, "word"] if call == 0 else ["a", None, [x], False, 2]
    return (x, things), {}
