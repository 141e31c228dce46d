"""Between the calls, a class gets its own attribute instead of an inherited one: the inherited one is still used.

Capture: the guard is on the base's attribute, without a guard that earlier classes in the MRO have none.
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
