"""native_dropout_backward of a transposed gradient and a mask that is broadcast is contiguous; eager's is transposed.

Decompositions that do not keep eager's strides.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "strides")}
DEVICE = "cpu"


def program(gradient, mask):
    return torch.ops.aten.native_dropout_backward(gradient, mask, 2.0)


def inputs(call):
    gradient = torch.arange(6.0, device=DEVICE).reshape(3, 2).t()
    return (gradient, torch.ones(1, 1, dtype=torch.bool, device=DEVICE)), {}
