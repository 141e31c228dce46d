"""A module is called with other parameters, and then with its own."""

import torch
from torch.func import functional_call

PROGRAM = {"tags": ("functional", "modules")}
DEVICE = "cpu"


LAYER = torch.nn.Linear(4, 2, device=DEVICE)
with torch.no_grad():
    LAYER.weight.copy_(torch.linspace(-1, 1, 8, device=DEVICE).reshape(2, 4))
    LAYER.bias.fill_(0.5)


def program(x):
    doubled = {name: parameter.detach() * 2 for name, parameter in LAYER.named_parameters()}
    return functional_call(LAYER, doubled, (x,)), functional_call(LAYER, {"bias": x[0, :2]}, x), LAYER(x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
