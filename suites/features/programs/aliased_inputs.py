"""The same tensor is passed twice and changed through one name; then two different tensors."""

import torch

PROGRAM = {"tags": ("aliasing", "mutation", "guards"), "calls": [{}, {}, {}]}
DEVICE = "cpu"


def program(a, b):
    a.add_(1)
    return b * 2


def inputs(call):
    a = torch.randn(4, device=DEVICE)
    return (a, torch.randn(4, device=DEVICE) if call == 1 else a), {}
