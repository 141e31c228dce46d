"""Random numbers: a subject with a generator of its own agrees in distribution, and that is enough."""

import torch

PROGRAM = {"tags": ("control", "random")}
DEVICE = "cpu"


def program(x):
    return x + torch.rand_like(x), torch.nn.functional.dropout(x, p=0.25, training=True)


def inputs(call):
    return (torch.ones(64, 64, device=DEVICE),), {}
