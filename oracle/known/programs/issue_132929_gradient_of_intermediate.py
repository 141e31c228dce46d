"""`torch.autograd.grad(z, [y], allow_unused=True)` of two values of the program is None.

Runtime: the graph before the call of grad is one autograd node, in which z does not depend on y.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd")}
DEVICE = "cpu"


def program(a):
    y = a * 2
    z = y * 3
    (gradient,) = torch.autograd.grad(z, [y], allow_unused=True)
    return a * 0 if gradient is None else gradient


def inputs(call):
    return (torch.ones((), device=DEVICE).requires_grad_(),), {}
