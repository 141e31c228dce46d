"""Backward of `torch.complex(a, a).conj()`: raises.

Joint graph: the gradient is read as real numbers, and is conjugated.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return torch.complex(a, a).conj()


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
