"""Dropout in training: forward and backward use one mask; in eval nothing is drawn."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("random", "modules"),
    "is_module": True,
    "calls": [{"training": True, "backward": True}, {"training": False}, {"training": True, "backward": True}],
}
DEVICE = "cpu"


def program():
    return nn.Sequential(nn.Linear(8, 16, device=DEVICE), nn.Dropout(0.5), nn.Linear(16, 4, device=DEVICE))


def inputs(call):
    return (torch.randn(6, 8, device=DEVICE, requires_grad=True),), {}
