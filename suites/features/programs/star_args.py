"""*args and **kwargs are unpacked, passed on and extended."""

import torch

PROGRAM = {"tags": ("control-flow", "containers"), "calls": [{}, {}]}
DEVICE = "cpu"


def combine(first, *others, scale=1.0, **named):
    total = first * scale
    for other in others:
        total = total + other
    for name in sorted(named):
        total = total - named[name]
    return total, len(others), sorted(named)


def program(*args, **kwargs):
    head, *tail = args
    return combine(head, *tail, *args[:1], **{**kwargs, "extra": head})


def inputs(call):
    args = tuple(torch.randn(3, device=DEVICE) for _ in range(2 + call))
    return args, {"scale": 0.5, "bias": torch.ones(3, device=DEVICE)}
