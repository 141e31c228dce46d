"""An in-place add through an unfold view with gaps leaves the elements between the windows alone."""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "aliasing")}
DEVICE = "cpu"


def program(x):
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x


def inputs(call):
    return (torch.arange(1, 25, device=DEVICE).reshape(4, 6),), {}
