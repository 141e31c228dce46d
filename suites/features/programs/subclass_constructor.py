"""A tensor subclass is made by __new__, with an attribute."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Scaled(torch.Tensor):
    """Knows a factor."""

    @staticmethod
    def __new__(cls, data, factor):
        made = torch.Tensor._make_subclass(cls, data)
        made.factor = factor
        return made


def program(x):
    scaled = Scaled(x.detach().sin(), 3)
    return (scaled * scaled.factor).as_subclass(torch.Tensor) + x


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
