"""A parameter is exchanged in the module's table, and put back."""

import torch

PROGRAM = {"tags": ("modules", "state")}
DEVICE = "cpu"


LAYER = torch.nn.Linear(4, 2, device=DEVICE)
with torch.no_grad():
    LAYER.weight.copy_(torch.linspace(-1, 1, 8, device=DEVICE).reshape(2, 4))
    LAYER.bias.fill_(0.5)


def program(x):
    before = LAYER._parameters["bias"]
    LAYER._parameters["bias"] = x[0, :2]
    found = LAYER.bias * 2, LAYER(x)
    LAYER._parameters["bias"] = before
    return found, LAYER(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
