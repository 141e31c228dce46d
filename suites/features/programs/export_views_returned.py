"""Views of an argument and of each other are returned beside a write to that argument, at several sizes."""

import torch

PROGRAM = {
    "tags": ("export", "aliasing", "mutation", "shapes"),
    "sizes": {"x": {"0": ["batch", 3, 16]}},
    "calls": [{}, {}],
}
DEVICE = "cpu"


def program(x):
    rows = x[1:]
    rows.mul_(2)
    return rows, rows.t(), x.view(-1)


def inputs(call):
    return (torch.randn((4, 6)[call], 2, device=DEVICE),), {}
