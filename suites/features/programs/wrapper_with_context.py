"""A wrapper with a placement passes it on, and control flow depends on it."""

# pyright: reportAssignmentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

import torch
from torch.utils._pytree import tree_map_only

PROGRAM = {"tags": ("classes",)}
DEVICE = "cpu"


class Placed(torch.Tensor):
    """One tensor, and where it is."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, local, place):
        return torch.Tensor._make_wrapper_subclass(cls, local.shape, dtype=local.dtype, device=local.device)

    def __init__(self, local, place):
        self.local, self.place = local, place

    def __tensor_flatten__(self):
        return ["local"], {"place": self.place}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Placed(inner["local"], context["place"])

    def moved(self, place):
        return Placed(self.local * 1, place)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        place = next(each.place for each in args if isinstance(each, Placed))
        plain = tree_map_only(Placed, lambda placed: placed.local, (args, kwargs or {}))
        return Placed(func(*plain[0], **plain[1]), place)


def program(x):
    placed = Placed(x, "shard") * 2
    if placed.place == "shard":
        placed = placed.moved("whole") + 1
    return placed.local, placed.place


def inputs(call):
    return (torch.randn(3, 4, device=DEVICE),), {}
