"""Dropout alone under an activation memory budget of 0: the gradient is the mask, and must be forward's."""

import torch
import torch.nn.functional as F

PROGRAM = {
    "tags": ("differs", "aot", "random", "autograd"),
    "calls": [{"backward": True}],
    "config": {"torch._functorch.config.activation_memory_budget": 0.0},
}
DEVICE = "cpu"


def program(x):
    return F.dropout(x, p=0.5, training=True) * 2


def inputs(call):
    return (torch.ones(8, 32, device=DEVICE, requires_grad=True),), {}
