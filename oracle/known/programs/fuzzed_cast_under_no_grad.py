"""`a.half()` under no_grad requires a gradient.

Decomposition of _to_copy: the mode is not that of the program; Inductor's graph copies.
"""

import torch

PROGRAM = {"tags": ("differs", "inductor", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a):
    return a.half()


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
