"""Forward pre-hooks and forward hooks change what goes in and out, and record shapes."""

import torch
from torch import nn

PROGRAM = {"tags": ("hooks", "modules"), "is_module": True, "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Net(nn.Module):
    """One layer with two hooks."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, device=DEVICE)
        self.calls = 0
        self.linear.register_forward_pre_hook(self.before)
        self.linear.register_forward_hook(self.after)

    def before(self, module, args):
        self.calls += 1
        return (args[0] * 2,)

    def after(self, module, args, output):
        return output + self.calls

    def forward(self, x):
        return self.linear(x), self.calls


program = Net


def inputs(call):
    return (torch.randn(2, 3, device=DEVICE, requires_grad=True),), {}
