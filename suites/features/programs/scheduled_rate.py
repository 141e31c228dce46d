"""A float that changes at each call, as learning rates do, beside one that stays."""

import torch

PROGRAM = {"tags": ("guards",), "calls": [{}, {}, {}, {}]}
DEVICE = "cpu"


def program(x, rate, scale):
    return x - rate * x.sin() * scale, f"{rate:.3f}", rate < 0.3


def inputs(call):
    return (torch.randn(3, device=DEVICE), 0.5 * 0.8**call, 2.0), {}
