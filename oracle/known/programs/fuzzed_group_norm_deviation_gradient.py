"""A gradient that arrives at the deviation of native_group_norm is lost in eager, unless one arrives at its mean too.

Eager's formula adds neither where one of the two does not arrive. Compiled, zeros arrive at a result that goes on after the
graph, and the gradient is right.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(x):
    output, mean, deviation = torch.ops.aten.native_group_norm(x, None, None, 2, 2, 2, 2, 2.0)
    torch._dynamo.graph_break()
    return output, deviation, mean.detach()


def inputs(call):
    return (torch.arange(8.0, device=DEVICE).reshape(2, 2, 2).requires_grad_(),), {}
