"""Gradients per sample: vmap of grad of functional_call."""

import torch
from torch.func import functional_call, grad, vmap

PROGRAM = {"tags": ("functional", "modules")}
DEVICE = "cpu"


LAYER = torch.nn.Linear(4, 2, device=DEVICE)
with torch.no_grad():
    for number, parameter in enumerate(LAYER.parameters()):
        parameter.copy_(torch.linspace(-1, 1, parameter.numel(), device=DEVICE).reshape(parameter.shape) + number)


def program(x):
    parameters = {name: parameter.detach() for name, parameter in LAYER.named_parameters()}

    def loss(given, row):
        return functional_call(LAYER, given, (row[None],)).tanh().square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(parameters, x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
