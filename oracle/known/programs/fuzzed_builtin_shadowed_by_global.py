"""A global with the name of a builtin is bound between the calls: the compiled code still calls the builtin."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "len = sevenfold"}],
}
DEVICE = "cpu"


def sevenfold(values):
    return 7


def program(x):
    return x * len(x.shape)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
