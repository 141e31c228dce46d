"""A scripted function is called in the program."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


@torch.jit.script
def scripted(x):
    return x * 2 + 1


def program(x):
    return scripted(x).sin() + scripted(x * 3)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
