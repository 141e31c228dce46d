"""Of two subclasses among the arguments, the derived class is asked first."""

# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{"backward": True}, {"backward": True}]}
DEVICE = "cpu"


class Base(torch.Tensor):
    """Multiplies sums."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 10 if func is torch.add else out


class Derived(Base):
    """Negates differences."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return -out if func is torch.sub else out


def program(x, y):
    a, b = x.as_subclass(Base), y.as_subclass(Derived)
    out = torch.add(a, b), torch.sub(a, b)
    return [each.as_subclass(torch.Tensor) for each in out], [type(each).__name__ for each in out]


def inputs(call):
    return (
        torch.randn(3, 4, device=DEVICE, requires_grad=True),
        torch.randn(3, 4, device=DEVICE),
    ), {}
