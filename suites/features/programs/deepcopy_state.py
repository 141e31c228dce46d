"""copy.copy and copy.deepcopy of nested containers of tensors, then changed in place."""

import copy

import torch

PROGRAM = {"tags": ("aliasing", "containers", "mutation")}
DEVICE = "cpu"


def program(state):
    deep = copy.deepcopy(state)
    shallow = copy.copy(state)
    deep["w"].add_(1)
    shallow["w"].mul_(2)
    shallow["new"] = shallow["w"] + 0
    return deep, shallow["new"], sorted(state)


def inputs(call):
    return ({"w": torch.randn(3, device=DEVICE), "n": [torch.ones(1, device=DEVICE)]},), {}
