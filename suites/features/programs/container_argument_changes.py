"""A list grows, its order changes, a dict gains a key between the calls."""

import torch

PROGRAM = {"tags": ("guards", "containers"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(items, options):
    total = items[0] * 0
    for position, item in enumerate(items):
        total = total + item * (position + 1)
    if options.get("negate"):
        total = -total
    return total, list(options)


def inputs(call):
    ones, twos = torch.ones(2, device=DEVICE), torch.full((2,), 2.0, device=DEVICE)
    items = ([ones, twos], [twos, ones], [ones, twos, ones])[call]
    return (items, ({}, {"negate": True}, {"other": 1, "negate": False})[call]), {}
