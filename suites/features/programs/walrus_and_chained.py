"""Assignment expressions, chained comparison, conditional expressions, starred assignment."""

import torch

PROGRAM = {"tags": ("control-flow",), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, bounds):
    low, *middle, high = bounds
    inside = low < len(middle) <= high
    if (count := x.shape[0]) > 2:
        x = x[: count - 1]
    return (x * 2 if inside else x / 2), count, [y for m in middle if (y := m * 2) > 4]


def inputs(call):
    return (torch.randn(4 - 2 * call, device=DEVICE), ([0, 1, 2, 3, 4], [5, 2, 9])[call]), {}
