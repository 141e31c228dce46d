"""Two classes have one object as an attribute of the same name; the second one's is replaced between the calls.

Capture: attributes are identified by name and value, so the guard is on the first class only.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "guards"), "calls": [{}, {"before": "Second.shift = 5"}]}
DEVICE = "cpu"


class First:
    """One attribute."""

    shift = 1


class Second:
    """The same."""

    shift = 1


first, second = First(), Second()


def program(x):
    return x * first.shift + second.shift


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
