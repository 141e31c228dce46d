"""zeta of an argument with a gradient, which nobody asks for: refused. Eager refuses its backward alone.

Joint graph: backward is traced in the first call, whether or not it is ever run.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd")}
DEVICE = "cpu"


def program(a):
    return torch.special.zeta(a, 2.0)


def inputs(call):
    return (torch.tensor([3.0], device=DEVICE).requires_grad_(),), {}
