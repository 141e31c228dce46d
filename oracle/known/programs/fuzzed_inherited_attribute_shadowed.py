"""A class gets an attribute of its own between the calls, which it had from its base until then: the base's is used on.

Capture: the guard is on the attribute in the base; that the classes before it have none is no guard.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "guards"), "calls": [{}, {"before": "Derived.scale = 3"}]}
DEVICE = "cpu"


class Base:
    """One attribute."""

    scale = 1


class Derived(Base):
    """The same, inherited."""


thing = Derived()


def program(x):
    return x * thing.scale


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
