"""Within DisableTorchFunctionSubclass nothing is overridden."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class PlusOne(torch.Tensor):
    """Adds one to sums."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out + 1 if func is torch.sum else out


def program(x):
    own = x.as_subclass(PlusOne)
    inside = torch.sum(own)
    with torch._C.DisableTorchFunctionSubclass():
        outside = torch.sum(own)
    return inside.as_subclass(torch.Tensor), outside


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
