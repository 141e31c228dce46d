"""A tensor subclass with __torch_function__ tags what it computes."""

# pyright: reportOperatorIssue=false

import torch

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


class Tagged(torch.Tensor):
    """Adds one to every sum; otherwise a tensor."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result + 1 if function is torch.sum else result


def program(x):
    tagged = x.as_subclass(Tagged)
    doubled = tagged * 2
    return torch.sum(doubled).as_subclass(torch.Tensor), isinstance(doubled, Tagged)


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
