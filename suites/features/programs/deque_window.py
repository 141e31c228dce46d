"""A deque with maxlen keeps a sliding window over the calls."""

from collections import deque

import torch

PROGRAM = {"tags": ("containers", "state"), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"

window = deque(maxlen=2)


def program(x):
    window.append(x * 2)
    total = x
    for kept in window:
        total = total + kept
    return total, len(window)


def inputs(call):
    return (torch.full((3,), float(call + 1), device=DEVICE),), {}
