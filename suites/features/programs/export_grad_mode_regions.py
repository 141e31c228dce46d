"""Regions without gradients and under autocast, nested, that export makes subgraphs of."""

import torch

PROGRAM = {"tags": ("export", "context", "autograd"), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x, weight):
    with torch.no_grad():
        scale = x.norm()
        with torch.enable_grad():
            kept = x * 2
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        product = x @ weight
    return product.float() / scale + kept.sum()


def inputs(call):
    return (
        torch.randn(3, 4, device=DEVICE, requires_grad=True),
        torch.randn(4, 4, device=DEVICE, requires_grad=True),
    ), {}
