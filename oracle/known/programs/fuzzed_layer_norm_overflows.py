"""layer_norm of numbers whose squares overflow is 0; eager's is NaN, and double precision has 1.

Decomposition of native_layer_norm, as of native_group_norm: the inverse square root of an infinite variance.
"""

import torch
import torch.nn.functional as F

PROGRAM = {"tags": ("differs", "inductor", "precision")}
DEVICE = "cpu"


def program(a):
    return F.layer_norm(a, [3])


def inputs(call):
    return (torch.tensor([[1.0, 2.0, 3e38], [1.0, 2.0, 3.0]], device=DEVICE),), {}
