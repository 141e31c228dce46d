"""A program walks over __mro__ and __bases__ of its classes."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Base:
    """Adds one."""

    add = 1


class Derived(Base):
    """Adds ten."""

    add = 10


def program(x):
    for class_ in Derived.__mro__:
        if "add" in class_.__dict__:
            x = x + class_.add
    return x, [base.__name__ for base in Derived.__bases__]


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
