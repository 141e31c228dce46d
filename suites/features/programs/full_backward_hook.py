"""A full backward hook scales the gradient of a submodule's input."""

import torch
from torch import nn

PROGRAM = {"tags": ("hooks", "autograd"), "is_module": True, "calls": [{"backward": True}]}
DEVICE = "cpu"


class Net(nn.Module):
    """The gradient through `inner` is halved."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, device=DEVICE)
        self.outer = nn.Linear(3, 2, device=DEVICE)
        self.inner.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


program = Net


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE, requires_grad=True),), {}
