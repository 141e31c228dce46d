"""Steps of an optimizer with momentum and decay inside of the program, on parameters and state that stay."""

import torch
from torch import nn

PROGRAM = {"tags": ("modules", "state"), "is_module": True, "calls": [{}, {}, {}]}
DEVICE = "cpu"


class Trained(nn.Module):
    """A layer that trains itself when it is called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2, device=DEVICE)
        self.optimizer = torch.optim.SGD(self.linear.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

    def forward(self, x):
        self.optimizer.zero_grad()
        loss = self.linear(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


program = Trained


def inputs(call):
    return (torch.randn(4, 3, device=DEVICE),), {}
