"""A result whose shape was changed in place is written after a graph break: raises.

Runtime: the result is a view of a result of a custom autograd function.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd")}
DEVICE = "cpu"


def program(a):
    out = a.sin()
    out.as_strided_((2,), (2,), 0)
    torch._dynamo.graph_break()
    out.mul_(2)
    return out


def inputs(call):
    return (torch.arange(5.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
