"""An in-place add on a[0::2] of a tensor that needs grad reaches the base."""

import torch

PROGRAM = {"tags": ("agrees", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(view):
    view.add_(1.0)


def inputs(call):
    base = torch.ones(4, device=DEVICE, requires_grad=True).add(0.0)
    return (base[0::2],), {}
