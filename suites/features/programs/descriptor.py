"""A data descriptor scales what is stored through it."""

# pyright: reportOperatorIssue=false

import torch

PROGRAM = {"tags": ("classes",), "calls": [{}, {}]}
DEVICE = "cpu"


class Scaled:
    """Stores twice what is assigned."""

    def __set_name__(self, owner, name):
        self.slot = f"_{name}"

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.slot)

    def __set__(self, instance, value):
        setattr(instance, self.slot, value * 2)


class Holder:
    """One scaled attribute."""

    value = Scaled()

    def __init__(self, value):
        self.value = value


def program(x):
    holder = Holder(x)
    holder.value = holder.value + 1
    return holder.value, sorted(vars(holder))


def inputs(call):
    return (torch.randn(3, device=DEVICE),), {}
