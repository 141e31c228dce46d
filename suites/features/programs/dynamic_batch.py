"""The batch size changes from call to call, with 1 and 0 among them."""

import torch
from torch import nn

PROGRAM = {
    "tags": ("shapes", "guards"),
    "is_module": True,
    "calls": [{"backward": True}, {"backward": True}, {"backward": True}, {"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


def program():
    return nn.Sequential(
        nn.Linear(4, 8, device=DEVICE), nn.LayerNorm(8, device=DEVICE), nn.ReLU(), nn.Linear(8, 2, device=DEVICE)
    )


def inputs(call):
    return (torch.randn((4, 7, 1, 0, 3)[call], 4, device=DEVICE, requires_grad=True),), {}
