"""item() and tolist() bring values to Python; they come back as scalars and as a size."""

import torch

PROGRAM = {"tags": ("data-dependent",), "calls": [{}, {}]}
DEVICE = "cpu"


def program(x, counts):
    largest = x.max().item()
    total = int(counts.sum())
    rows = [float(value) * 2 for value in counts.tolist()]
    return x / largest, torch.ones(total, device=x.device), rows, bool(counts[0] > 1)


def inputs(call):
    return (torch.tensor([1.0, 4.0, 2.0], device=DEVICE), torch.tensor([1 + call, 2], device=DEVICE)), {}
