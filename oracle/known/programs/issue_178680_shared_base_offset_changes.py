"""Two inputs share a storage; the second call has the same shapes at another offset."""

import torch

PROGRAM = {"tags": ("differs", "aot", "aliasing", "mutation", "guards"), "calls": [{}, {}]}
DEVICE = "cpu"


def program(row, rows):
    row.add_(1)
    return rows.sum(dim=0)


def inputs(call):
    rows = torch.zeros(3, 2, device=DEVICE)
    return (rows[call], rows), {}
