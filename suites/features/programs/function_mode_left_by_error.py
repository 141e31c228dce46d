"""A mode is off after an exception has left its block."""

# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.overrides import TorchFunctionMode

PROGRAM = {
    "tags": (
        "context",
        "exceptions",
    ),
    "calls": [{"backward": True}, {"backward": True}],
}
DEVICE = "cpu"


class Multiplies(TorchFunctionMode):
    """Multiplies for torch.add."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return torch.mul(*args, **(kwargs or {})) if func is torch.add else func(*args, **(kwargs or {}))


def program(x):
    try:
        with Multiplies():
            y = torch.add(x, 2)
            raise ValueError
    except ValueError:
        return torch.add(x, 3) + y


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
