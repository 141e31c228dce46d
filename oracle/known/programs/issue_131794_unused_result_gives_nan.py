"""A result that nobody differentiates has a derivative of infinity: backward gives NaN.

Runtime: results without a gradient get one of zeros, and 0 * inf is NaN.
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
