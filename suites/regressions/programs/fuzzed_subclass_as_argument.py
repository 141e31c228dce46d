"""A subclass of Tensor that overrides nothing is an argument: raises TypeError.

Runtime: the graph's operators are called with the subclass; Inductor's kernels never are.
"""

import torch

PROGRAM = {"tags": ("differs", "aot")}
DEVICE = "cpu"


class Labelled(torch.Tensor):
    """A tensor by another name."""


def program(a):
    return torch.sin(a)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}


def derive(x):
    return (x.as_subclass(Labelled),), {}
