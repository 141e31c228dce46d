"""A mode changes the dtype of tensors that are made."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.overrides import TorchFunctionMode

PROGRAM = {"tags": ("context",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class InDouble(TorchFunctionMode):
    """Makes ones in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ones:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def program(x):
    with InDouble():
        made = torch.ones(4, device=DEVICE)
    return made, x * 2


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
