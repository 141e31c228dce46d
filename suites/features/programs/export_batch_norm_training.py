"""A module in training mode and in eval mode: exported again, with statistics written in place."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("export", "modules", "state"),
    "is_module": True,
    "calls": [{"training": True}, {"training": True}, {"training": False}],
}
DEVICE = "cpu"


def program():
    return nn.Sequential(nn.Conv2d(2, 3, 3, device=DEVICE), nn.BatchNorm2d(3, device=DEVICE), nn.ReLU(), nn.Flatten())


def inputs(call):
    return (torch.randn(4, 2, 5, 5, device=DEVICE),), {}
