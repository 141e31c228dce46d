"""A result that backward does not need is written after a graph break: backward raises that a saved tensor was modified.

Runtime: all results of a graph share one backward, which checks the saved tensors of all of them.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "mutation", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    one = a + 1
    other = one.sigmoid()
    torch._dynamo.graph_break()
    other.mul_(2)
    return one


def inputs(call):
    return (torch.arange(4.0, device=DEVICE).requires_grad_(),), {}


def derive(x):
    return (x,), {}
