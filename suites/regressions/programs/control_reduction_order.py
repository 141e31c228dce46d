"""A long float32 sum with cancellation: another order of addition is no finding."""

import torch

PROGRAM = {"tags": ("control", "precision")}
DEVICE = "cpu"


def program(x):
    return x.sum(), x.mean(dim=0), (x * x).sum(dim=1).sqrt()


def inputs(call):
    return (torch.randn(64, 257, device=DEVICE) * 100,), {}
