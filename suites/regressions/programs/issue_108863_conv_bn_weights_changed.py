"""Convolution and batch norm in eval under no_grad; the weights change between the calls."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("agrees", "inductor", "guards"),
    "rung": "inductor",
    "where": "pre-grad fusion; stale by design with freezing",
    "is_module": True,
    "calls": [
        {"training": False, "grad_mode": "no_grad"},
        {
            "training": False,
            "grad_mode": "no_grad",
            "before": "with torch.no_grad(): target[0].weight.mul_(3); target[1].running_mean.add_(1)",
        },
    ],
}
DEVICE = "cpu"


def program():
    return nn.Sequential(nn.Conv2d(2, 3, 3, device=DEVICE), nn.BatchNorm2d(3, device=DEVICE))


def inputs(call):
    return (torch.randn(1, 2, 5, 5, device=DEVICE),), {}
