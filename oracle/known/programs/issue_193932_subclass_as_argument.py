"""A subclass of Tensor that overrides nothing is an argument: raises TypeError.

Runtime: a dispatch mode leaves the operator to the subclass, which has no handler. Inductor's kernels are not affected.
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
