"""Part of the program runs under no_grad, part under enable_grad, and a decorator does the same."""

import torch

PROGRAM = {"tags": ("context", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


@torch.no_grad()
def statistics(x):
    return x.mean(), x.std()


def program(x):
    mean, std = statistics(x)
    with torch.no_grad():
        frozen = x * 3
        with torch.enable_grad():
            live = x * 4
    return (x - mean) / std, frozen, live, torch.is_grad_enabled()


def inputs(call):
    return (torch.randn(6, device=DEVICE, requires_grad=True),), {}
