"""A tensor subclass has methods, a property and a class method of its own."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Own(torch.Tensor):
    """A tensor with methods."""

    def twice(self):
        return self * 2

    @property
    def half(self):
        return self / 2

    @classmethod
    def kind(cls):
        return cls.__name__


def program(x):
    own = x.as_subclass(Own)
    return (own.twice().half + own).as_subclass(torch.Tensor), own.kind(), isinstance(own.sin(), Own)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
