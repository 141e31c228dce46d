"""A subclass is written to, and its base sees it."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Own(torch.Tensor):
    """A tensor of another class."""


def program(x):
    y = x * 1
    own = y.as_subclass(Own)
    own.mul_(2)
    own[0].add_(1)
    return y + 1, own.sum().as_subclass(torch.Tensor)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
