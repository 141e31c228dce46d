"""Minimum, maximum, sum, and powers of sizes that vary."""

import torch

PROGRAM = {
    "tags": ("export", "shapes"),
    "sizes": {"x": {"0": ["rows", 2, 32]}, "y": {"0": ["columns", 2, 32]}},
    "calls": [{}, {}, {}],
}
DEVICE = "cpu"


def program(x, y):
    rows, columns = x.shape[0], y.shape[0]
    least = torch.sym_min(rows, columns)
    most = torch.sym_max(rows, columns)
    return (
        x[:least] * y[:least],
        torch.zeros(most, device=DEVICE) + torch.sym_sum([rows, columns, 1]),
        rows**2 // columns,
    )


def inputs(call):
    rows, columns = ((4, 7), (9, 3), (5, 5))[call]
    return (torch.randn(rows, device=DEVICE), torch.randn(columns, device=DEVICE)), {}
