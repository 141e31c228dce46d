"""Backward of `torch.complex(a, a).conj()`: raises.

Joint graph: view_as_real of a gradient with the conjugate bit.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"backward": True}]}
DEVICE = "cpu"


def program(a):
    return torch.complex(a, a).conj()


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
