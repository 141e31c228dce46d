"""Dropout under an activation memory budget below 1: backward must use forward's mask."""

import torch
import torch.nn.functional as F

PROGRAM = {
    "tags": ("differs", "aot", "random", "autograd"),
    "calls": [{"backward": True}],
    "config": {"torch._functorch.config.activation_memory_budget": 0.1},
}
DEVICE = "cpu"


def program(x, w):
    hidden = F.dropout(torch.sin(x @ w), p=0.5, training=True)
    return torch.cos(hidden @ w)


def inputs(call):
    x = torch.randn(16, 16, device=DEVICE, requires_grad=True)
    return (x, torch.randn(16, 16, device=DEVICE, requires_grad=True)), {}
