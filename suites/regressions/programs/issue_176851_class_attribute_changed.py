"""A class attribute read in the function changes between the calls."""

import torch

PROGRAM = {
    "tags": ("agrees", "capture", "guards"),
    "rung": "dynamo",
    "where": "guards",
    "calls": [{}, {"before": "Options.factor = 7.0"}],
}
DEVICE = "cpu"


class Options:
    """One attribute."""

    factor = 2.0


def program(x):
    return x * Options.factor


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
