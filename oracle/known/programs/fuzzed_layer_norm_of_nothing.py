"""Native_layer_norm of no elements has NaN for the mean; eager 0.

Decomposition of native_layer_norm: a mean of nothing.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "nan")}
DEVICE = "cpu"


def program(a):
    return torch.ops.aten.native_layer_norm(a, [0], a, a, 2.0)[1]


def inputs(call):
    return (torch.ones(0, device=DEVICE),), {}
