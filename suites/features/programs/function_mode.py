"""A mode answers for torch.add within its block."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.overrides import TorchFunctionMode

PROGRAM = {"tags": ("context",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Multiplies(TorchFunctionMode):
    """Multiplies for torch.add."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return torch.mul(*args, **(kwargs or {})) if func is torch.add else func(*args, **(kwargs or {}))


def program(x):
    before = torch.add(x, 3)
    with Multiplies():
        inside = torch.add(x, 3) + 1
    return before, inside, torch.add(x, 3)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
