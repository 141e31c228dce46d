"""The order of an OrderedDict that is iterated changes between the calls. (For a plain dict there is a guard.)"""

import collections

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "FACTORS.move_to_end('a')"}],
}
DEVICE = "cpu"
FACTORS = collections.OrderedDict(a=2.0, b=3.0)


def program(x):
    for factor in FACTORS.values():
        x = x * factor + 1
    return x


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
