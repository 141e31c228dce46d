"""A mode counts the functions that are called within its block."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.overrides import TorchFunctionMode

PROGRAM = {"tags": ("context",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Counts(TorchFunctionMode):
    """Counts calls by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def program(x):
    with Counts() as mode:
        y = torch.sin(x) @ x.T
        z = y[0] + x.shape[0]
    return z, mode.names


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
