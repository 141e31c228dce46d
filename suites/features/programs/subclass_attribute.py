"""A tensor subclass passes an attribute on to what is computed from it."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Tagged(torch.Tensor):
    """Results have the tag of the first argument."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, cls):
            out.tag = getattr(args[0], "tag", None)
        return out


def program(x):
    tagged = x.as_subclass(Tagged)
    tagged.tag = "first"
    out = torch.relu(tagged) + 1
    return out.as_subclass(torch.Tensor), out.tag


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
