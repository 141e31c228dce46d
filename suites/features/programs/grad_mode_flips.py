"""The caller's grad mode changes between the calls; requires_grad of the output follows."""

import torch

PROGRAM = {
    "tags": ("context", "guards"),
    "calls": [{"grad_mode": "no_grad"}, {"backward": True}, {"grad_mode": "no_grad"}],
}
DEVICE = "cpu"


def program(x):
    y = torch.sin(x) * 2
    return y, y.requires_grad


def inputs(call):
    return (torch.randn(3, device=DEVICE, requires_grad=True),), {}
