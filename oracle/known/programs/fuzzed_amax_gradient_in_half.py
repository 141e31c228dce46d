"""The gradient of amax of a float16 product is NaN.

Fusion: the maximum and the elements compared with it are rounded differently, so none is equal, and 0 / 0 follows.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd", "precision"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return torch.amax(a * a, dim=0)


def inputs(call):
    a = torch.tensor([[0.1, 0.7], [0.3, 0.2]], dtype=torch.float16, device=DEVICE)
    return (a.requires_grad_(),), {}
