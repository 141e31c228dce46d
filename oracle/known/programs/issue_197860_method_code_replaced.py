"""The code object of a method is replaced between the calls."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "Model.apply.__code__ = ninefold.__code__"}],
}
DEVICE = "cpu"


def twofold(self, x):
    return x * 2.0


def ninefold(self, x):
    return x * 9.0


class Model:
    """One method."""

    apply = twofold


model = Model()


def program(x):
    return model.apply(x)


def inputs(call):
    return (torch.arange(1.0, 4.0, device=DEVICE),), {}
