"""`torch.func.grad` in inference mode: the result is an inference tensor; eager's is none.

Runtime: results are made in the call's inference mode.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"grad_mode": "inference"}]}
DEVICE = "cpu"


def sum_of_squares(x):
    return (x * x).sum()


def program(x):
    return torch.func.grad(sum_of_squares)(x)


def inputs(call):
    return (torch.ones(3, device=DEVICE),), {}
