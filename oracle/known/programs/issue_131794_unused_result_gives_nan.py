"""A result that is not differentiated has an infinite derivative: the gradient is NaN.

Runtime: results without a tangent get a tangent of zeros, and 0 * inf is NaN.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd", "nan"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    y = a * 2
    z = a.log()
    torch._dynamo.graph_break()
    return y, z.detach()


def inputs(call):
    return (torch.zeros(2, device=DEVICE).requires_grad_(),), {}
