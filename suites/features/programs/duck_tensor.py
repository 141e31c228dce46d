"""An object that is no tensor answers for the functions of torch."""

# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Held:
    """Holds a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [each.tensor if isinstance(each, Held) else each for each in args]
        return func(*plain, **(kwargs or {})) + 5


def program(x):
    return torch.add(Held(x), 1), torch.sin(Held(x))


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE, requires_grad=True),), {}
