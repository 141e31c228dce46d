"""The gradient of a slice of float8 numbers: raises.

Lowering of slice_backward: a mask and float8 numbers have no common dtype.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return a.to(torch.float8_e5m2)[1:].float()


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
