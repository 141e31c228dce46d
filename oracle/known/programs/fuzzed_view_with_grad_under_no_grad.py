"""A view of an argument is made under enable_grad, called under no_grad: a leaf, whose gradient goes nowhere.

Runtime: views of arguments are made again in the mode of the call.
"""

import torch

PROGRAM = {"tags": ("differs", "aot", "autograd"), "calls": [{"grad_mode": "no_grad"}]}
DEVICE = "cpu"


def program(a):
    with torch.enable_grad():
        return a.unsqueeze(0)


def inputs(call):
    return (torch.ones(2, device=DEVICE).requires_grad_(),), {}
