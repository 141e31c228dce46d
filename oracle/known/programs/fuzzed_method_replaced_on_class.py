"""A method is replaced on its class between the calls."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "Scale.apply = minus_one"}],
}
DEVICE = "cpu"


def minus_one(self, x):
    return x - 1


class Scale:
    """One method."""

    def apply(self, x):
        return x * 2


scale = Scale()


def program(x):
    return scale.apply(x)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
