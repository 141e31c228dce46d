"""A view of an argument whose base another argument writes to: its shape is taken from the base."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(a, b):
    b.fill_(2)
    return a.squeeze()


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x[:1], x), {}
