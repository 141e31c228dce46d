"""A global number changes from 0.0 to -0.0 between the calls: equal, and not the same."""

import torch

PROGRAM = {
    "tags": ("differs", "capture", "guards"),
    "calls": [{}, {"before": "ZERO = -0.0"}],
}
DEVICE = "cpu"
ZERO = 0.0


def program(x):
    return torch.copysign(x, torch.full_like(x, ZERO))


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
