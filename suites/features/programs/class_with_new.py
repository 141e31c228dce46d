"""A class sets attributes in __new__, before __init__ runs."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class WithNew:
    """Is made in two steps."""

    def __new__(cls, number):
        made = super().__new__(cls)
        made.doubled = number * 2
        return made

    def __init__(self, number):
        self.number = number + self.doubled


def program(x):
    made = WithNew(3)
    return x * made.number, made.doubled


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
