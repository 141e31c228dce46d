"""A subclass that disables __torch_function__ computes plain tensors."""

# pyright: reportAssignmentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Unasked(torch.Tensor):
    """Is never asked."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def program(x):
    own = x.as_subclass(Unasked)
    out = own.sin() + 1
    return out, type(out).__name__


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
