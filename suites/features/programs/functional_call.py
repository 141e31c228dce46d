"""torch.func.functional_call runs a module with other parameters and leaves its own alone."""

import torch
from torch import nn
from torch.func import functional_call

PROGRAM = {"tags": ("functional", "modules"), "calls": [{"backward": True}]}
DEVICE = "cpu"

model = nn.Linear(3, 2, device=DEVICE)


def program(weight, bias, x):
    return functional_call(model, {"weight": weight, "bias": bias}, (x,)) - model(x)


def inputs(call):
    shapes = ((2, 3), (2,), (4, 3))
    return tuple(torch.randn(*shape, device=DEVICE, requires_grad=True) for shape in shapes), {}
