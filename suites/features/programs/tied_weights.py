"""Embedding and output layer share one parameter: one gradient, the sum of both uses."""

import torch
from torch import nn

PROGRAM = {"tags": ("modules", "aliasing"), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Net(nn.Module):
    """Tied in and out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4, device=DEVICE)
        self.head = nn.Linear(4, 7, bias=False, device=DEVICE)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens)))


program = Net


def inputs(call):
    return (torch.tensor([[1, 2, 6], [0, 2, 2]], device=DEVICE),), {}
