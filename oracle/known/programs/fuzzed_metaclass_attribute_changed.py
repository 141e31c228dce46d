"""An attribute that a class has from its metaclass changes between the calls."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "Meta.scale = 5.0"}],
}
DEVICE = "cpu"


class Meta(type):
    """One attribute."""

    scale = 2.0


class Scaled(metaclass=Meta):
    """Has it from its metaclass."""


def program(x):
    return x * Scaled.scale


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
