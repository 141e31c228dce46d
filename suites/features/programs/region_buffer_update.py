"""A nested compile region updates a buffer in each of its calls."""

import torch
from torch import nn
from torch.compiler import nested_compile_region

PROGRAM = {"tags": ("mutation", "modules"), "calls": [{}, {}]}
DEVICE = "cpu"


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    @nested_compile_region
    def forward(self, x):
        self.count.add_(1)
        return x * self.count


counter = Counter().to(DEVICE)


def program(x, y):
    return counter(x) + counter(y), counter.count.clone()


def inputs(call):
    x = torch.randn(3, 4, device=DEVICE)
    return (x, torch.randn(3, 4, device=DEVICE)), {}
