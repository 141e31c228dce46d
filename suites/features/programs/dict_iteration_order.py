"""Dict merge, comprehension over items, reversed order and membership."""

import torch

PROGRAM = {"tags": ("containers",)}
DEVICE = "cpu"


def program(x):
    first = {"z": x, "a": x + 1}
    second = {"a": x + 2, "m": x + 3}
    merged = {**first, **second} | {"k": x * 0}
    weights = {name: float(position) for position, name in enumerate(reversed(merged))}
    return {name: merged[name] * weights[name] for name in sorted(merged) if name != "k"}


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
