"""A slice of a result is returned whose shape was changed in place afterwards: raises.

Output aliases: the slice is regenerated from the final state of the result.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd", "strides")}
DEVICE = "cpu"


def program(a):
    copy = a * 2
    part = copy[:, 1:]
    copy.as_strided_((4,), (1,), 0)
    return part


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).reshape(2, 2).requires_grad_(),), {}


def derive(x):
    return (x,), {}
