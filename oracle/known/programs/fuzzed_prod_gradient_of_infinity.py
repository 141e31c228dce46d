"""The gradient of prod of one infinite element is NaN in eager, and a number compiled.

Joint graph: with fake tensors autograd uses another formula, which does not divide the result by the element.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return torch.prod(a)


def inputs(call):
    return (torch.tensor([float("inf")], device=DEVICE).requires_grad_(),), {}
