"""A wrapper of two tensors is made, computed with and taken apart."""

# pyright: reportAssignmentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.utils._pytree import tree_map_only

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


class Pair(torch.Tensor):
    """Two tensors that go through every operator."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def part(name):
            plain = tree_map_only(Pair, lambda pair: getattr(pair, name), (args, kwargs or {}))
            return func(*plain[0], **plain[1])

        return Pair(part("a"), part("b"))


def program(x):
    pair = (Pair(x, x + 1) * 2).sin()
    return pair.a, pair.b, type(pair).__name__, tuple(pair.shape)


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
