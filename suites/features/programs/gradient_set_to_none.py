"""The gradient of an argument is removed in the program."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("autograd",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x):
    x.grad = None
    return x * 2


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
