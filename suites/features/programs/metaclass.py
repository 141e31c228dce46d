"""A metaclass has a property and a method."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Meta(type):
    """Counts names."""

    @property
    def size(cls):
        return len(cls.__name__)

    def scale(cls, x):
        return x * cls.factor


class Long(metaclass=Meta):
    """A class with a factor."""

    factor = 3


def program(x):
    return Long.scale(x) + Long.size, len(Long.__mro__)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
