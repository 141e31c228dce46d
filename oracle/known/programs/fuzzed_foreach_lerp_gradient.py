"""`_foreach_lerp_` of two pairs, one of which requires grad: both results require grad.

Capture: requires_grad of tensors that a foreach operator has written.
"""

import torch

PROGRAM = {"tags": ("differs", "capture", "autograd", "mutation")}
DEVICE = "cpu"


def program(a, b, c, d):
    torch._foreach_lerp_([a, b], [c, d], 0.25)


def inputs(call):
    a, b, c, d = (torch.ones(3, device=DEVICE) for _ in range(4))
    return (a, b, c, d.requires_grad_()), {}
