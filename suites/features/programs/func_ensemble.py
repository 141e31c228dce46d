"""An ensemble of modules with stacked parameters."""

import torch
from torch.func import functional_call, stack_module_state, vmap

PROGRAM = {"tags": ("functional", "modules")}
DEVICE = "cpu"


LAYERS = [torch.nn.Linear(4, 2, device=DEVICE) for _ in range(3)]
with torch.no_grad():
    for index, layer in enumerate(LAYERS):
        for parameter in layer.parameters():
            parameter.copy_(
                torch.linspace(-1, 1, parameter.numel(), device=DEVICE).reshape(parameter.shape) * (index + 1)
            )
PARAMETERS, BUFFERS = stack_module_state(LAYERS)


def program(x):
    def call(parameters, buffers, given):
        return functional_call(LAYERS[0], (parameters, buffers), (given,))

    return vmap(call, in_dims=(0, 0, None))(PARAMETERS, BUFFERS, x)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
