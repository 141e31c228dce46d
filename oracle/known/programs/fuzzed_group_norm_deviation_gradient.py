"""The tangent of native_group_norm's deviation is ignored in eager, unless its mean has a tangent too.

Eager's formula adds neither if one of the two is undefined. Compiled, a result that is used after the graph gets zeros, and the
gradient is right.
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
