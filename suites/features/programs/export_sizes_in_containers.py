"""Nested dicts, lists and named tuples of tensors, all of whose sizes vary."""

from collections import namedtuple

import torch

PROGRAM = {"tags": ("export", "containers", "shapes"), "dynamic": True, "calls": [{}, {}]}
DEVICE = "cpu"


Pair = namedtuple("Pair", ["left", "right"])


def program(batch, *, extra):
    total = sum(part.sum(0) for part in batch["parts"])
    pair = Pair(batch["pair"][0] + total, batch["pair"][1] * extra["scale"])
    return {"pair": list(pair), "count": len(batch["parts"]), "none": None, "extra": (extra["scale"],)}


def inputs(call):
    rows, width = ((4, 3), (5, 6))[call]
    parts = [torch.randn(rows + 1, width, device=DEVICE), torch.randn(rows, width, device=DEVICE)]
    pair = (torch.randn(width, device=DEVICE), torch.randn(rows, width, device=DEVICE))
    return ({"parts": parts, "pair": pair},), {"extra": {"scale": torch.randn(width, device=DEVICE)}}
