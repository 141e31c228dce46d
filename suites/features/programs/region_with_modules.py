"""Layers with a nested compile region as their forward have parameters of their own."""

import torch
from torch import nn
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("autograd", "modules"), "calls": [{"backward": True}]}
DEVICE = "cpu"


class Layer(nn.Module):
    """A linear layer whose forward is a region."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @nested_compile_region
    def forward(self, x):
        return torch.relu(self.linear(x)) + x


class Model(nn.Module):
    """Three layers in a row."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(0)
model = Model().to(DEVICE)


def program(x, y):
    return model(x) * y


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    return (x, torch.randn(3, 4, device=DEVICE, requires_grad=True)), {}
