"""A buffer is made in the program and knows that it is one."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("modules",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x):
    buffer = torch.nn.Buffer(x.detach() * 2)
    return buffer + x, buffer.persistent, isinstance(buffer, torch.nn.Buffer)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
