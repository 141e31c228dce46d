"""A dict memoises tensors by shape; the second call of a shape reuses the first one's."""

import torch

PROGRAM = {"tags": ("state", "containers", "shapes"), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"

cache = {}


def program(x):
    key = tuple(x.shape)
    if key not in cache:
        cache[key] = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    return x + cache[key], len(cache), sorted(cache)


def inputs(call):
    return (torch.randn(2, 3 + call % 2, device=DEVICE),), {}
