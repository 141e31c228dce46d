"""zeta of an argument that requires grad is refused, even without a backward. Eager refuses only its backward.

Joint graph: backward is traced in the first call, whether or not it is ever run.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd")}
DEVICE = "cpu"


def program(a):
    return torch.special.zeta(a, 2.0)


def inputs(call):
    return (torch.tensor([3.0], device=DEVICE).requires_grad_(),), {}
