"""Attributes are assigned to an argument and to what is computed."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


def program(x):
    x.note = 3
    y = x * x.note
    y.parts = [x + 1, "text"]
    return y, y.parts, hasattr(y, "note")


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
