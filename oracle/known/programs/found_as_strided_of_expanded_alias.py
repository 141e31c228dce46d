"""as_strided of an expanded argument reads memory that another argument writes to."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing", "strides")}
DEVICE = "cpu"


def program(a, b):
    view = a.expand(2, -1).as_strided((1, 2), (1, 2))
    b.sigmoid_()
    return view


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2),), {}


def derive(x):
    return (x[..., 1], x), {}
