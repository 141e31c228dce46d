"""The inner of two modes is asked first, and passes on to the outer."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.overrides import TorchFunctionMode

PROGRAM = {"tags": ("context",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Adds(TorchFunctionMode):
    """Adds to every sine."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * self.number + 1 if func is torch.sin else out


def program(x):
    with Adds(2):
        with Adds(3):
            both = torch.sin(x)
        outer = torch.sin(x)
    return both, outer


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
